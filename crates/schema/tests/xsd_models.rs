//! XML Schema: content models against an oracle. What the validator accepts, and which models it refuses as ambiguous, must
//! agree with automata that random models are expanded into. A restriction that is accepted must accept nothing that its base
//! does not, and a change that is told compatible must accept all that was accepted before.

mod xsd_oracle;

use std::cell::Cell;
use std::collections::HashSet;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tidegate_schema::{Document, Format, SchemaType, Verdict};
use xsd_oracle::{
    CHILDREN, Leaf, Model, Oracle, Part, Particle, State, compile, content, definition, model, occurs, write,
};

/// Adds words that start with `word`, and whether they are accepted: all up to `length`. A word that cannot go on is not
/// continued: what is wrong stays wrong.
fn words(oracle: &Oracle, part: &Part, (word, at): (&str, &State), length: usize, all: &mut Vec<(String, bool)>) {
    for (child, _) in CHILDREN {
        let next = oracle.read(part, at, child);
        let longer = format!("{word}{child}");
        let can_go_on = !next.is_empty();
        let next = Some(next);
        all.push((longer.clone(), Oracle::accepts(part, &next)));
        if longer.len() < length && can_go_on {
            words(oracle, part, (&longer, &next), length, all);
        }
    }
}

/// Adds repetitions of a word, as long as they can go on.
fn repeated(oracle: &Oracle, part: &Part, word: &str, words: &mut Vec<(String, bool)>) {
    let mut at = None;
    for count in 1..14 {
        for child in word.chars() {
            at = Some(oracle.read(part, &at, child));
        }
        words.push((word.repeat(count), Oracle::accepts(part, &at)));
        if at.as_ref().is_some_and(|at| at.is_empty()) {
            return;
        }
    }
}

fn agree(particle: &Particle) -> Result<(), TestCaseError> {
    let (oracle, part) = Oracle::of(particle);
    let mut body = String::new();
    write(particle, &mut body);
    match compile(&format!("<xs:element name=\"r\"><xs:complexType>{body}</xs:complexType></xs:element>")) {
        Err(error) => {
            let is_ambiguous = oracle.is_ambiguous(&part);
            let is_unclear = error.message.contains("cannot be told apart");
            prop_assert!(is_ambiguous || is_unclear, "{body}: {error}");
            prop_assert!(is_unclear || error.message.contains("is ambiguous"), "{body}: {error}");
        }
        Ok(schema) => {
            prop_assert!(!oracle.is_ambiguous(&part), "{body}: it is ambiguous");
            let mut all = vec![(String::new(), part.nullable)];
            // Wildcards let in so much that there are many more words.
            let length = if body.contains("<xs:any") { 4 } else { 6 };
            words(&oracle, &part, ("", &None), length, &mut all);
            for word in ["a", "b", "c", "ab", "aab", "abc", "bc", "ax"] {
                repeated(&oracle, &part, word, &mut all);
            }
            for (word, is_accepted) in all {
                let text = |child: char| CHILDREN.iter().find(|(one, _)| *one == child).unwrap().1;
                let children: String = word.chars().map(text).collect();
                let document = format!("<r>{children}</r>");
                let report = schema.validate(Document { bytes: document.as_bytes(), format: Format::Xml });
                prop_assert_eq!(report.is_valid(), is_accepted, "{} {}", body, word);
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn validators_agree_with_the_oracle(model in model(), (min, max) in occurs()) {
        agree(&(content(model), min, max))?;
    }
}

/// Chooses what to do next; without choices left, nothing is changed.
struct Choices<'c>(std::slice::Iter<'c, u8>);

impl Choices<'_> {
    fn next(&mut self, of: u8) -> u8 {
        self.0.next().map_or(0, |byte| byte % of)
    }
}

/// Changes a particle, mostly so that it becomes narrower.
fn restrict((model, min, max): &Particle, choices: &mut Choices<'_>) -> Particle {
    let (min, max) = match choices.next(10) {
        6 => (min + 1, max.map(|max| max.max(min + 1))),
        7 => (*min, Some(max.map_or(min + 2, |max| max.saturating_sub(1).max(*min).max(1)))),
        8 => (max.unwrap_or(*min), Some(max.unwrap_or(*min).max(1))),
        9 => (min.saturating_sub(1), *max),
        _ => (*min, *max),
    };
    let model = match model {
        Model::Leaf(leaf) if *leaf != Leaf::Element('a') && choices.next(4) == 3 => {
            let leaves = [Leaf::Element('a'), Leaf::Local, Leaf::Space, Leaf::Other];
            Model::Leaf(leaves[usize::from(choices.next(4))])
        }
        Model::Leaf(leaf) => Model::Leaf(*leaf),
        Model::Sequence(parts) => Model::Sequence(restrict_all(parts, choices)),
        Model::Choice(parts) => {
            let parts = restrict_all(parts, choices);
            match choices.next(4) {
                3 => Model::Sequence(parts),
                _ if parts.is_empty() => Model::Sequence(parts),
                _ => Model::Choice(parts),
            }
        }
    };
    (model, min, max)
}

/// Changes several particles, and may drop one of them.
fn restrict_all(parts: &[Particle], choices: &mut Choices<'_>) -> Vec<Particle> {
    let mut parts: Vec<Particle> = parts.iter().map(|part| restrict(part, choices)).collect();
    if choices.next(3) == 2 && !parts.is_empty() {
        parts.remove(usize::from(choices.next(4)) % parts.len());
    }
    parts
}

/// A word that the one accepts and the other does not.
fn counter_example(derived: &Particle, base: &Particle) -> Option<String> {
    let (own, own_part) = Oracle::of(derived);
    let (of_base, base_part) = Oracle::of(base);
    let mut seen: HashSet<(State, State)> = HashSet::new();
    let mut queue: Vec<(String, State, State)> = vec![(String::new(), None, None)];
    while let Some((word, at, base_at)) = queue.pop() {
        if Oracle::accepts(&own_part, &at) && !Oracle::accepts(&base_part, &base_at) {
            return Some(word);
        }
        for (child, _) in CHILDREN {
            let next = own.read(&own_part, &at, child);
            if next.is_empty() {
                continue;
            }
            let (next, base_next) = (Some(next), Some(of_base.read(&base_part, &base_at, child)));
            if seen.insert((next.clone(), base_next.clone())) {
                queue.push((format!("{word}{child}"), next, base_next));
            }
        }
    }
    None
}

#[test]
fn restrictions_are_no_wider_than_their_bases() {
    let (accepted, narrower) = (Cell::new(0), Cell::new(0));
    let cases = (model(), occurs(), prop::collection::vec(any::<u8>(), 0..40));
    let mut runner = TestRunner::new(Config { cases: 2_500, failure_persistence: None, ..Config::default() });
    let result = runner.run(&cases, |(model, (min, max), choices)| {
        let base = (content(model), min, max);
        let derived = restrict(&base, &mut Choices(choices.iter()));
        let (mut base_text, mut derived_text) = (String::new(), String::new());
        write(&base, &mut base_text);
        write(&derived, &mut derived_text);
        let body = format!(
            "<xs:complexType name=\"base\">{base_text}</xs:complexType><xs:complexType name=\"less\"><xs:complexContent>\
             <xs:restriction base=\"base\">{derived_text}</xs:restriction></xs:complexContent></xs:complexType>"
        );
        if compile(&body).is_ok() {
            let wider = counter_example(&derived, &base);
            prop_assert!(wider.is_none(), "base {base_text}\nless {derived_text}\naccepts {wider:?}");
            accepted.set(accepted.get() + 1);
            narrower.set(narrower.get() + usize::from(counter_example(&base, &derived).is_some()));
        }
        Ok(())
    });
    println!("{} restrictions accepted, {} of them narrower than their bases", accepted.get(), narrower.get());
    result.unwrap();
    assert!(accepted.get() > 400 && narrower.get() > 100, "{} {}", accepted.get(), narrower.get());
}

#[test]
fn compatible_changes_reject_nothing() {
    let (compatible, wider) = (Cell::new(0), Cell::new(0));
    let cases = (model(), occurs(), prop::collection::vec(any::<u8>(), 0..40));
    let mut runner = TestRunner::new(Config { cases: 1_200, failure_persistence: None, ..Config::default() });
    let result = runner.run(&cases, |(model, (min, max), choices)| {
        let one = (content(model), min, max);
        let other = restrict(&one, &mut Choices(choices.iter()));
        for (old, new) in [(&one, &other), (&other, &one)] {
            let definition = |particle: &Particle| {
                let mut text = String::new();
                write(particle, &mut text);
                definition(&format!("<xs:element name=\"r\"><xs:complexType>{text}</xs:complexType></xs:element>"))
            };
            let (before, after) = (definition(old), definition(new));
            let Ok(comparison) = SchemaType::Xsd.language().compare(&before, &after) else { continue };
            if comparison.verdict() == Verdict::Compatible {
                let lost = counter_example(old, new);
                prop_assert!(lost.is_none(), "{before:?}\n{after:?}\nloses {lost:?}\n{comparison:?}");
                compatible.set(compatible.get() + 1);
                wider.set(wider.get() + usize::from(counter_example(new, old).is_some()));
            }
        }
        Ok(())
    });
    println!("{} changes compatible, {} of them accept more than before", compatible.get(), wider.get());
    result.unwrap();
    assert!(compatible.get() > 300 && wider.get() > 50, "{} {}", compatible.get(), wider.get());
}
