//! What the fuzz targets do with an input, and the seeds they start from. `scripts/fuzz` builds and runs them.
//!
//! An input is a few bytes that say what to do, followed by schemas or a document; [`Input`] reads and writes it. Anything
//! may be refused. What must not happen: a panic (also one that the crate would catch: the fuzzer aborts first), an
//! input that takes more than [`MOST`] of CPU time, and the contradictions asserted here.

mod cases;
pub mod seeds;

use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use tidegate_schema::limits::MAX_VIOLATIONS;
use tidegate_schema::{Change, Comparison, Definition, Document, Format, Report, SchemaType, Validator, Verdict};

/// The most CPU time that one input may take, in a build that is instrumented and checks overflows.
pub const MOST: Duration = Duration::from_secs(2);

/// The folder that seeds are written to, instead of fuzzing.
const SEEDS: &str = "TIDEGATE_FUZZ_SEEDS";

/// Called once, before the first input: writes the seeds if it is told to.
///
/// # Panics
/// When a seed cannot be written.
pub fn start(seeds: impl FnOnce() -> Vec<Vec<u8>>) {
    let Some(folder) = std::env::var_os(SEEDS) else { return };
    for (number, seed) in seeds().into_iter().enumerate() {
        let file = Path::new(&folder).join(format!("seed-{number:05}"));
        std::fs::write(&file, seed).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
    std::process::exit(0);
}

/// A schema in an input.
#[derive(Debug, Default)]
pub(crate) struct Input<'d> {
    pub(crate) strict: bool,
    /// The content is a descriptor set in binary; it is written in base64.
    pub(crate) is_set: bool,
    pub(crate) message: &'d [u8],
    pub(crate) content: &'d [u8],
}

impl<'d> Input<'d> {
    fn read(data: &'d [u8]) -> Option<Self> {
        let (&flags, rest) = data.split_first()?;
        let (&length, rest) = rest.split_first()?;
        let (message, content) = rest.split_at_checked(usize::from(length))?;
        Some(Self { strict: flags & 1 != 0, is_set: flags & 2 != 0, message, content })
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        let length = u8::try_from(self.message.len()).unwrap_or(0);
        let mut data = vec![u8::from(self.strict) | u8::from(self.is_set) << 1, length];
        data.extend(&self.message[..usize::from(length)]);
        data.extend(self.content);
        data
    }

    fn definition(&self) -> Definition {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Definition {
            content: if self.is_set { BASE64_STANDARD.encode(self.content) } else { text(self.content) },
            message: (!self.message.is_empty()).then(|| text(self.message)),
            strict: self.strict,
        }
    }
}

/// Separates schemas and the document behind them: a byte that no UTF-8 has.
pub(crate) const SEPARATOR: u8 = 0xff;

/// Compiles an input, and validates a small document of each format if that succeeds, or the document behind a text.
///
/// # Panics
/// When something is found.
pub fn compile(language: SchemaType, data: &[u8]) {
    let Some(input) = Input::read(data) else { return };
    let mut parts = input.content.splitn(2, |&byte| byte == SEPARATOR);
    let (content, document) = match (parts.next(), parts.next()) {
        (Some(content), Some(document)) if !input.is_set => (content, Some(document)),
        _ => (input.content, None),
    };
    let definition = Input { content, ..input }.definition();
    within(|| {
        if let Ok(validator) = language.language().compile(&definition) {
            assert!(validator.size() > 0);
            for (format, bytes) in
                [(Format::Json, &b"{\"a\":[1]}"[..]), (Format::Protobuf, b"\x08\x01"), (Format::Xml, b"<a/>")]
            {
                checked(&*validator, Document { bytes: document.unwrap_or(bytes), format });
            }
        }
    });
}

/// Validates the document in an input with one of the schemas of the tests.
///
/// # Panics
/// When something is found.
pub fn validate(language: SchemaType, data: &[u8]) {
    static SCHEMAS: OnceLock<Vec<(Box<dyn Validator>, Format)>> = OnceLock::new();
    let schemas = SCHEMAS.get_or_init(|| cases::schemas(language).iter().filter_map(cases::Schema::compile).collect());
    let Some((number, bytes)) = data.split_first_chunk::<2>() else { return };
    let (validator, format) = &schemas[usize::from(u16::from_le_bytes(*number)) % schemas.len()];
    within(|| checked(&**validator, Document { bytes, format: *format }));
}

/// Compares the two schemas in an input, and each with itself. A document may follow: if the change is told to be
/// compatible and the old schema accepts it, the new one has to.
///
/// # Panics
/// When something is found.
pub fn compare(data: &[u8]) {
    let Some((&language, data)) = data.split_first() else { return };
    let kind = SchemaType::ALL[usize::from(language) % SchemaType::ALL.len()];
    let language = kind.language();
    let mut parts = data.splitn(3, |&byte| byte == SEPARATOR);
    let Some(old) = parts.next().and_then(Input::read) else { return };
    let Some(new) = parts.next().and_then(Input::read) else { return };
    let (old, new) = (old.definition(), new.definition());
    let comparison = within(|| language.compare(&old, &new));
    for one in [&old, &new] {
        within(|| {
            if let Ok(comparison) = language.compare(one, one) {
                assert!(comparison.changes().is_empty(), "a schema differs from itself: {:?}", comparison.changes());
            }
        });
    }
    let Some(bytes) = parts.next() else { return };
    if comparison.is_ok_and(|comparison| promises_all(kind, &comparison)) {
        let (Ok(before), Ok(after)) = (language.compile(&old), language.compile(&new)) else { return };
        let formats: &[Format] = match kind {
            SchemaType::JsonSchema => &[Format::Json],
            SchemaType::Proto => &[Format::Json, Format::Protobuf],
            SchemaType::Xsd => &[Format::Xml],
        };
        for &format in formats {
            let document = Document { bytes, format };
            if within(|| checked(&*before, document)).is_valid() {
                let report = within(|| checked(&*after, document));
                let is_given_up =
                    report.violations().iter().any(|one| GIVEN_UP.iter().any(|why| one.message.contains(why)));
                assert!(report.is_valid() || is_given_up, "told compatible: {:?}", report.violations());
            }
        }
    }
}

/// What violations say that are no verdict: the document would take too long with the new schema.
const GIVEN_UP: [&str; 3] = ["it cannot be judged", "with this schema at most", "more steps than are allowed"];

/// Whether a comparison says that everything is still accepted, not counting what is compatible by decision: documents
/// that had a field before the schema did.
fn promises_all(kind: SchemaType, comparison: &Comparison) -> bool {
    let is_decided = |change: &Change| kind != SchemaType::Xsd && change.message.contains("is added");
    comparison.verdict() == Verdict::Compatible && !comparison.changes().iter().any(is_decided)
}

/// Validates, and checks that the report does not contradict itself.
fn checked(validator: &dyn Validator, document: Document<'_>) -> Report {
    let report = validator.validate(document);
    let shown = report.violations().len();
    assert!(shown <= MAX_VIOLATIONS && shown as u64 <= report.total(), "{shown} of {}", report.total());
    assert!(report.total() == shown as u64 || shown == MAX_VIOLATIONS, "{shown} of {}", report.total());
    assert_eq!(report.is_valid(), shown == 0);
    let length = report.violations().iter().map(|one| one.path.len() + one.message.len()).max();
    assert!(length.unwrap_or_default() < 64 << 10, "a violation of {length:?} bytes");
    report
}

/// Runs a job that must not take too long.
fn within<T>(job: impl FnOnce() -> T) -> T {
    let before = used();
    let result = job();
    let took = used().saturating_sub(before);
    assert!(took <= MOST, "one input took {took:?} of CPU time");
    result
}

/// The CPU time that this thread has used.
fn used() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec that lives through the call.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0, "this system tells no CPU time of threads");
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}
