//! The text of an element, and what follows from it when the element ends.

use std::borrow::Cow;

use super::{Frame, Run, State, findings};
use crate::xsd::model::{Reading, TypeId};
use crate::xsd::xml::{Reader, is_space};

/// Text that may come in pieces.
#[derive(Debug, Default)]
pub(super) struct TextBuffer<'d> {
    first: Option<Cow<'d, str>>,
    whole: String,
    is_joined: bool,
}

impl<'d> TextBuffer<'d> {
    pub(super) fn clear(&mut self) {
        self.first = None;
        self.is_joined = false;
        self.whole.clear();
    }

    fn push(&mut self, piece: Cow<'d, str>) {
        if self.is_joined {
            self.whole.push_str(&piece);
            return;
        }
        match self.first.take() {
            None => self.first = Some(piece),
            Some(first) => {
                self.whole.push_str(&first);
                self.whole.push_str(&piece);
                self.is_joined = true;
            }
        }
    }

    /// Takes the text out. What is joined is handed back by [`give_back`](Self::give_back).
    fn take(&mut self) -> Cow<'d, str> {
        if self.is_joined {
            self.is_joined = false;
            return Cow::Owned(std::mem::take(&mut self.whole));
        }
        self.first.take().unwrap_or_default()
    }
}

impl<'m, 'd> Run<'m, 'd> {
    /// Takes a piece of text.
    pub(super) fn text(&mut self, piece: Cow<'d, str>, offset: usize) {
        let Some(frame) = self.frames.last_mut() else { return };
        if piece.is_empty() {
            return;
        }
        let had_text = std::mem::replace(&mut frame.has_text, true);
        let element = frame.offset;
        match &frame.state {
            State::Skipped => {}
            _ if frame.is_nil => {
                if !had_text {
                    self.findings.add(element, "", offset, || "an element with xsi:nil=\"true\" must be empty".into());
                }
            }
            State::Empty => {
                if !had_text {
                    let why = || "this element must be empty: not even white space is allowed in it".into();
                    self.findings.add(element, "", offset, why);
                }
            }
            State::Simple(_) => self.buffer.push(piece),
            State::Elements { is_mixed: true, .. } => {
                if frame.element.is_some_and(|element| element.value.is_some()) {
                    self.buffer.push(piece);
                }
            }
            State::Elements { .. } => {
                let is_blank = piece.chars().all(is_space);
                frame.has_text = had_text || !is_blank;
                if !is_blank && !had_text {
                    self.findings.add(element, "", offset, || {
                        format!("text is not allowed between the elements in here: {}", findings::clip(piece.trim()))
                    });
                }
            }
        }
    }

    /// Takes the end of an element.
    pub(super) fn end(&mut self, reader: &Reader<'d, 'm>, offset: usize) {
        let Some(frame) = self.frames.pop() else { return };
        let depth = self.frames.len();
        let mut key = None;
        match &frame.state {
            _ if frame.is_nil => {}
            State::Simple(text_type) => key = self.end_simple(reader, &frame, *text_type),
            State::Elements { .. } | State::Empty => self.end_complex(&frame, offset),
            State::Skipped => {}
        }
        if self.identity.is_active() {
            let is_nillable = frame.element.is_some_and(|element| element.is_nillable);
            let is_simple = matches!(frame.state, State::Simple(_));
            for field in &frame.fields {
                self.identity.set_element(*field, key.as_deref(), (is_simple, is_nillable), &mut self.findings);
            }
            self.is_exhausted |= !self.identity.close(depth, self.model, &mut self.findings);
        }
        self.path.pop();
    }

    /// Checks that the content of an element is complete, and what a default or fixed value demands of it.
    fn end_complex(&mut self, frame: &Frame<'m>, offset: usize) {
        let value = frame.element.and_then(|element| element.value.as_ref());
        let (is_mixed, is_nullable) = match &frame.state {
            State::Elements { content, is_mixed, .. } => (*is_mixed, content.is_nullable()),
            _ => (false, true),
        };
        let is_default = value.is_some() && !frame.has_children && !frame.has_text;
        if let State::Elements { content, cursor, .. } = &frame.state
            && !is_default
            && !content.may_end(cursor)
        {
            let model = self.model;
            self.findings.add(frame.offset, "", offset, || {
                let expected = content.expected(cursor, |id| model.element_name(id), &model.names);
                format!("this element ends too early: {expected}")
            });
        }
        let Some(value) = value else { return };
        if is_default && !(is_mixed && is_nullable) {
            self.findings.add(frame.offset, "", frame.offset, || {
                let named = self.model.type_name(frame.type_id);
                let text = findings::clip(&value.text);
                format!("the element is empty, so its value is {text}, which {named} does not allow")
            });
        }
        if value.is_fixed && !is_default {
            let text = self.buffer.take();
            if frame.has_children || (is_mixed && *text != *value.text) {
                self.findings.add(frame.offset, "", frame.offset, || {
                    let text = findings::clip(&value.text);
                    format!("this element has the fixed value {text} and must have no other content")
                });
            }
        }
    }

    /// Checks the text of an element. Returns what equal values have in common, if that is asked for.
    fn end_simple(&mut self, reader: &Reader<'d, 'm>, frame: &Frame<'m>, text_type: TypeId) -> Option<String> {
        let text = self.buffer.take();
        let value = frame.element.and_then(|element| element.value.as_ref());
        let wants_key = !frame.fields.is_empty() || value.is_some_and(|value| value.is_fixed);
        let is_declared = frame.element.is_some_and(|element| element.type_id == frame.type_id);
        let (text, is_default) = match value {
            Some(value) if text.is_empty() => (Cow::Borrowed(&*value.text), true),
            _ => (text, false),
        };
        if let Some(value) = value.filter(|_| is_default && is_declared) {
            self.default_identifiers(frame.offset, "", &value.identifiers);
            return (wants_key && self.spend(value.key.len())).then(|| value.key.as_ref().into());
        }
        if is_default && !self.spend(text.len()) {
            return None;
        }
        let mut key = String::new();
        let mut reading = Reading {
            prefixes: reader.scope(),
            identifiers: &mut self.identifiers,
            work: &mut self.work,
            key: wants_key.then_some(&mut key),
        };
        let place = (frame.offset, "", frame.offset);
        if let Err(wrong) = self.model.check_text(text_type, &text, &mut reading) {
            self.wrong_value(place, &text, &wrong);
            return None;
        }
        if !self.identifiers.is_empty() {
            self.take_identifiers(frame.offset, "", frame.offset);
        }
        if let Some(value) = value.filter(|value| value.is_fixed && *value.key != *key) {
            self.findings.add(frame.offset, "", frame.offset, || {
                let fixed = findings::clip(&value.text);
                format!("the value must be {fixed}, which is fixed, and is {}", findings::clip(&text))
            });
        }
        Some(key)
    }
}
