//! Attributes: declarations, uses, groups and wildcards.

use super::{ATTRIBUTES, Attributes, Builder, Built, refuse};
use crate::xsd::model::{ANY_SIMPLE_TYPE, Allowed, Attribute, NameId, Process, TypeId, Use, ValueConstraint, Wildcard};
use crate::xsd::value::Kind;
use crate::xsd::xml::{ABSENT, NodeId};

impl Builder<'_> {
    /// Builds the global attributes.
    pub(super) fn global_attributes(&mut self) -> Built<()> {
        for node in self.tree.children(0).filter(|child| self.tree.node(*child).is("attribute")).collect::<Vec<_>>() {
            let name = self.global_name(node)?;
            let type_id = self.attribute_type(node)?;
            let value = self.attribute_value(node, type_id)?;
            let offset = self.tree.node(node).offset;
            if self.model.global_attributes.insert(name, self.model.attributes.len()).is_some() {
                return refuse(format!("the attribute {} is defined twice", self.model.names.show(name)), offset);
            }
            self.no_xmlns(name, offset)?;
            self.model.attributes.push(Attribute { type_id, value });
        }
        Ok(())
    }

    fn no_xmlns(&self, name: NameId, offset: usize) -> Built<()> {
        if self.model.names.local(name) == "xmlns" {
            return refuse("no attribute can be named xmlns", offset);
        }
        Ok(())
    }

    fn attribute_type(&mut self, node: NodeId) -> Built<TypeId> {
        let inline = self.tree.child(node, "simpleType");
        match (self.type_reference(node, "type")?, inline) {
            (None, None) => Ok(ANY_SIMPLE_TYPE),
            (None, Some(inline)) => Ok(self.type_of(inline)),
            (Some((id, offset)), None) if self.is_complex(id) => refuse(
                format!("{} is not simple, so it cannot be that of an attribute", self.model.type_name(id)),
                offset,
            ),
            (Some((id, _)), None) => Ok(id),
            (Some((_, offset)), Some(_)) => {
                refuse("an attribute cannot have both a type and a simpleType in it", offset)
            }
        }
    }

    /// The default or fixed value of an attribute.
    fn attribute_value(&mut self, node: NodeId, type_id: TypeId) -> Built<Option<ValueConstraint>> {
        let element = self.tree.node(node);
        let (attr, is_fixed) = match (element.attribute("default"), element.attribute("fixed")) {
            (Some(attr), None) => (attr, false),
            (None, Some(attr)) => (attr, true),
            (None, None) => return Ok(None),
            (Some(attr), Some(_)) => return refuse("default and fixed exclude each other", attr.offset),
        };
        if !is_fixed && element.get("use").is_some_and(|used| used.trim_ascii() != "optional") {
            return refuse("an attribute with a default must be optional", attr.offset);
        }
        if self.is_id(type_id) {
            return refuse("an identifier cannot have a default or fixed value", attr.offset);
        }
        match self.key_of(type_id, node, &attr.value) {
            Ok((key, identifiers)) => {
                let text = attr.value.as_ref().into();
                Ok(Some(ValueConstraint { is_fixed, text, key: key.into(), identifiers }))
            }
            Err(why) => refuse(format!("{:?} is no value of its type: {why}", attr.value), attr.offset),
        }
    }

    /// Whether values of a type are identifiers.
    pub(super) fn is_id(&self, id: TypeId) -> bool {
        self.model.is_kind(id, Kind::Id)
    }

    /// Builds an attribute group.
    pub(super) fn attribute_group(&mut self, node: NodeId) -> Built<()> {
        let name = self.global_name(node)?;
        let group = self.attributes(node)?;
        self.attribute_groups.insert(name, group);
        Ok(())
    }

    /// Reads the attributes, attribute groups and wildcard in an element.
    pub(super) fn attributes(&mut self, node: NodeId) -> Built<Attributes> {
        let mut all = Attributes::default();
        let mut wildcards = Vec::new();
        let mut own = None;
        for child in self.tree.children(node).collect::<Vec<_>>() {
            let element = self.tree.node(child);
            match &*element.name {
                "attribute" => match self.attribute_use(child)? {
                    (used, false) => all.uses.push(used),
                    (used, true) => all.prohibited.push(used.name),
                },
                "attributeGroup" => {
                    let Some((name, offset)) = self.reference(child, "ref")? else {
                        return refuse("this attributeGroup refers to nothing: it needs a ref", element.offset);
                    };
                    let Some(group) = self.attribute_groups.get(&name) else {
                        let why = format!("there is no attributeGroup {}", self.model.names.show(name));
                        return refuse(why, offset);
                    };
                    all.uses.extend(group.uses.iter().cloned());
                    wildcards.extend(group.wildcard.clone());
                    let namespaces = group.wildcard.as_ref().map_or(0, |wildcard| wildcard.allowed.names());
                    self.inherit_attributes(group.uses.len() + namespaces, element.offset)?;
                }
                "anyAttribute" => own = Some(self.wildcard(child)?),
                _ => {}
            }
        }
        let process = own.as_ref().or(wildcards.first()).map(|wildcard| wildcard.process);
        if let Some(process) = process {
            let mut allowed = Allowed::Any;
            for one in own.iter().chain(&wildcards) {
                allowed = match allowed.intersect(&one.allowed) {
                    Some(both) => both,
                    None => {
                        let why = "what the anyAttribute in here have in common cannot be said by one of them";
                        return refuse(why, self.tree.node(node).offset);
                    }
                };
            }
            all.wildcard = Some(Wildcard { allowed, process });
        }
        self.check_uses(&mut all.uses)?;
        Ok(all)
    }

    /// Takes inherited attributes, and namespaces that inherited wildcards list, off what is allowed.
    pub(super) fn inherit_attributes(&mut self, count: usize, offset: usize) -> Built<()> {
        match self.inherited_attributes.checked_sub(count) {
            Some(left) => {
                self.inherited_attributes = left;
                Ok(())
            }
            None => refuse(format!("the types of this schema have more than {ATTRIBUTES} attributes together"), offset),
        }
    }

    /// Sorts attributes, and checks that they have different names, and at most one is an identifier. One that came in twice,
    /// by groups, counts once.
    pub(super) fn check_uses(&self, uses: &mut Vec<Use>) -> Built<()> {
        uses.sort_by_key(|used| (used.name, used.offset));
        uses.dedup_by_key(|used| (used.name, used.offset));
        if let Some([_, again]) = uses.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return refuse(format!("there are two attributes {}", self.model.names.show(again.name)), again.offset);
        }
        let mut ids = uses.iter().filter(|used| self.is_id(used.type_id));
        match (ids.next(), ids.next()) {
            (Some(_), Some(second)) => refuse("two attributes of one type are identifiers (ID)", second.offset),
            _ => Ok(()),
        }
    }

    /// Reads an attribute of a type, and whether it is prohibited.
    fn attribute_use(&mut self, node: NodeId) -> Built<(Use, bool)> {
        let element = self.tree.node(node);
        let offset = element.offset;
        let (is_required, is_prohibited) = match element.get("use").map(str::trim_ascii) {
            None | Some("optional") => (false, false),
            Some("required") => (true, false),
            Some("prohibited") => (false, true),
            Some(other) => return refuse(format!("{other:?} is neither optional, required nor prohibited"), offset),
        };
        if let Some((name, at)) = self.reference(node, "ref")? {
            let declared = self.model.global_attributes.get(&name).and_then(|id| self.model.attributes.get(*id));
            let Some(declared) = declared else {
                return refuse(format!("there is no attribute {}", self.model.names.show(name)), at);
            };
            let (type_id, inherited) = (declared.type_id, declared.value.clone());
            let own = self.attribute_value(node, type_id)?;
            let value = match (own, inherited) {
                (Some(own), Some(fixed)) if fixed.is_fixed && (!own.is_fixed || own.key != fixed.key) => {
                    return refuse(format!("the attribute is declared with the fixed value {:?}", fixed.text), offset);
                }
                (own, inherited) => own.or(inherited),
            };
            return Ok((Use { name, type_id, is_required, value, offset }, is_prohibited));
        }
        let local = self.required_name(node)?;
        let space = self.space(node, self.model.is_attribute_qualified)?;
        let name = self.model.names.intern(space, local);
        self.no_xmlns(name, offset)?;
        let type_id = self.attribute_type(node)?;
        let value = self.attribute_value(node, type_id)?;
        Ok((Use { name, type_id, is_required, value, offset }, is_prohibited))
    }

    /// Reads a wildcard for elements or attributes.
    pub(super) fn wildcard(&mut self, node: NodeId) -> Built<Wildcard> {
        let element = self.tree.node(node);
        let process = match element.get("processContents").map(str::trim_ascii) {
            None | Some("strict") => Process::Strict,
            Some("lax") => Process::Lax,
            Some("skip") => Process::Skip,
            Some(other) => return refuse(format!("{other:?} is neither strict, lax nor skip"), element.offset),
        };
        let target = self.model.target;
        let allowed = match element.get("namespace").map(str::trim_ascii) {
            None | Some("##any") => Allowed::Any,
            Some("##other") => Allowed::Not(target),
            Some(list) => {
                let mut spaces = Vec::new();
                for word in list.split_ascii_whitespace() {
                    spaces.push(match word {
                        "##targetNamespace" => target,
                        "##local" => ABSENT,
                        word if word.starts_with("##") => {
                            return refuse(format!("{word:?} is not allowed in a list of namespaces"), element.offset);
                        }
                        uri => self.model.names.spaces.intern(uri),
                    });
                }
                spaces.sort_unstable();
                spaces.dedup();
                Allowed::Only(spaces)
            }
        };
        Ok(Wildcard { allowed, process })
    }
}
