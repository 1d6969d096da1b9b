//! What a batch does to resources, decided from the rows that it is about. Knows no database: a store reads those rows
//! under its locks, and writes what was decided under a new catalogue version.

use std::collections::{BTreeMap, HashMap};

use tidegate_core::{Timestamp, Tsid};

use crate::error::{Error, ErrorKind, Result};
use crate::values::resources::no_resource;
use crate::values::{Batch, CatalogueVersion, ChangeResource, DeleteResource, PutResource, Resource};

/// Kind, client and code.
type Key = (String, Option<Tsid>, String);

/// The resources that a batch is about.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    rows: BTreeMap<Tsid, Planned>,
    /// Those that are not deleted.
    by_code: HashMap<Key, Tsid>,
}

#[derive(Debug)]
struct Planned {
    resource: Resource,
    write: Write,
}

/// What has to be written of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Write {
    Nothing,
    Insert,
    Update,
}

impl Plan {
    /// A plan over the rows that were found by the batch's ids and codes.
    pub(crate) fn new(found: impl IntoIterator<Item = Resource>) -> Self {
        let mut plan = Self::default();
        for resource in found {
            if !resource.deleted {
                plan.by_code.insert(key(&resource), resource.id);
            }
            plan.rows.insert(resource.id, Planned { resource, write: Write::Nothing });
        }
        plan
    }

    /// Plans to create or change a resource. A new one without an id of its own takes one of `drawn` (see [`to_draw`]). Its
    /// version and its moments are set by [`stamp`](Self::stamp).
    pub(crate) fn put(&mut self, item: &PutResource, drawn: &mut dyn Iterator<Item = Tsid>) -> Result<Tsid> {
        item.check()?;
        match item {
            PutResource::Create { id, kind, client, code, body } => {
                let id = id.or_else(|| drawn.next());
                let resource = Resource {
                    id: id.ok_or_else(|| Error::new(ErrorKind::Corrupt, "no id was drawn for a new resource"))?,
                    kind: kind.clone(),
                    client: *client,
                    code: code.clone(),
                    version: 0,
                    deleted: false,
                    body: body.clone(),
                    created_at: Timestamp::UNIX_EPOCH,
                    updated_at: Timestamp::UNIX_EPOCH,
                };
                self.create(resource)
            }
            PutResource::Change { id, kind, expected, body } => {
                let row = self.find(kind, *id)?;
                if row.resource.deleted {
                    return Err(no_resource(kind, *id));
                }
                row.expect(*expected)?;
                if row.resource.body != *body {
                    row.resource.body.clone_from(body);
                    row.changed();
                }
                Ok(*id)
            }
        }
    }

    fn create(&mut self, resource: Resource) -> Result<Tsid> {
        let (id, key) = (resource.id, key(&resource));
        if let Some(taken) = self.by_code.get(&key) {
            let (kind, _, code) = key;
            let text = format!("there is a {kind} {code:?} already: change it by its id, {taken}, or use another code");
            return Err(Error::new(ErrorKind::Conflict, text));
        }
        if self.rows.contains_key(&id) {
            return Err(Error::new(ErrorKind::Conflict, format!("the id {id} is taken: use another one, or none")));
        }
        self.by_code.insert(key, id);
        self.rows.insert(id, Planned { resource, write: Write::Insert });
        Ok(id)
    }

    /// Plans to delete a resource.
    pub(crate) fn delete(&mut self, item: &DeleteResource) -> Result<()> {
        item.check()?;
        let row = self.find(&item.kind, item.id)?;
        if row.resource.deleted {
            return Ok(());
        }
        row.expect(item.expected)?;
        row.resource.deleted = true;
        row.resource.body.clear();
        row.changed();
        Ok(())
    }

    /// Plans changes that belong together; after an error nothing of the plan may be written.
    pub(crate) fn change(
        &mut self,
        items: &[ChangeResource],
        drawn: &mut dyn Iterator<Item = Tsid>,
    ) -> Result<Vec<Result<Tsid>>> {
        let mut ids = Vec::with_capacity(items.len());
        for item in items {
            ids.push(Ok(match item {
                ChangeResource::Put(item) => self.put(item, drawn)?,
                ChangeResource::Delete(item) => {
                    self.delete(item)?;
                    item.id
                }
            }));
        }
        Ok(ids)
    }

    fn find(&mut self, kind: &str, id: Tsid) -> Result<&mut Planned> {
        self.rows.get_mut(&id).filter(|row| row.resource.kind == kind).ok_or_else(|| no_resource(kind, id))
    }

    /// Whether there is anything to write.
    pub(crate) fn writes(&self) -> bool {
        self.rows.values().any(|row| row.write != Write::Nothing)
    }

    /// Gives all that is to be written its version and its moment.
    pub(crate) fn stamp(&mut self, version: CatalogueVersion, now: Timestamp) {
        for row in self.rows.values_mut().filter(|row| row.write != Write::Nothing) {
            (row.resource.version, row.resource.updated_at) = (version.number, now);
            if row.write == Write::Insert {
                row.resource.created_at = now;
            }
        }
    }

    /// New rows, by id.
    pub(crate) fn inserts(&self) -> impl Iterator<Item = &Resource> {
        self.to_write(Write::Insert)
    }

    /// Changed rows, by id.
    pub(crate) fn updates(&self) -> impl Iterator<Item = &Resource> {
        self.to_write(Write::Update)
    }

    fn to_write(&self, write: Write) -> impl Iterator<Item = &Resource> {
        self.rows.values().filter(move |row| row.write == write).map(|row| &row.resource)
    }

    /// The resources that the answers of a batch are about, as the batch leaves them.
    pub(crate) fn answers(&self, ids: Vec<Result<Tsid>>) -> Batch<Resource> {
        let resource = |id: Tsid| match self.rows.get(&id) {
            Some(row) => Ok(row.resource.clone()),
            None => Err(Error::new(ErrorKind::Corrupt, format!("the resource {id} was not written"))),
        };
        ids.into_iter().map(|id| id.and_then(resource)).collect()
    }
}

impl Planned {
    /// Checks that the resource has the version that the caller knows.
    fn expect(&self, expected: Option<i64>) -> Result<()> {
        let Some(expected) = expected else { return Ok(()) };
        let Resource { id, kind, version, .. } = &self.resource;
        let text = match self.write {
            Write::Nothing if *version == expected => return Ok(()),
            Write::Nothing => format!("{kind} {id} has version {version}, not {expected}: read it again"),
            _ => format!(
                "{kind} {id} was changed by an earlier item of this batch, and has no longer version {expected}"
            ),
        };
        Err(Error::new(ErrorKind::Conflict, text))
    }

    fn changed(&mut self) {
        if self.write == Write::Nothing {
            self.write = Write::Update;
        }
    }
}

/// What is put by changes, and the ids of what they delete.
pub(crate) fn split(items: &[ChangeResource]) -> (Vec<PutResource>, Vec<i64>) {
    let (mut puts, mut deleted) = (Vec::new(), Vec::new());
    for item in items {
        match item {
            ChangeResource::Put(item) => puts.push(item.clone()),
            ChangeResource::Delete(item) => deleted.push(item.id.to_i64()),
        }
    }
    (puts, deleted)
}

/// How many new resources have no id of their own.
pub(crate) fn to_draw(items: &[PutResource]) -> usize {
    items.iter().filter(|item| matches!(item, PutResource::Create { id: None, .. })).count()
}

/// The ids by which the rows of a batch are found.
pub(crate) fn ids(items: &[PutResource]) -> Vec<i64> {
    let id = |item: &PutResource| match item {
        PutResource::Create { id, .. } => id.map(Tsid::to_i64),
        PutResource::Change { id, .. } => Some(id.to_i64()),
    };
    items.iter().filter_map(id).collect()
}

/// The kinds, clients and codes by which the rows of a batch are found.
pub(crate) fn codes(items: &[PutResource]) -> Vec<(&str, Option<i64>, &str)> {
    let mut codes = Vec::new();
    // A text that is not valid could not even be asked for.
    for item in items.iter().filter(|item| item.check().is_ok()) {
        if let PutResource::Create { kind, client, code, .. } = item {
            codes.push((kind.as_str(), client.map(Tsid::to_i64), code.as_str()));
        }
    }
    codes
}

fn key(resource: &Resource) -> Key {
    (resource.kind.clone(), resource.client, resource.code.clone())
}
