//! What this language bounds beyond [`limits`](crate::limits). Each bound is checked when a schema is registered, save the
//! last four, which bound what one document may cost; the first of them holds for schemas too.

/// The longest chain of derivations, of references among groups, or of heads of substitution groups.
pub(super) const CHAIN: usize = 100;
/// The element and wildcard particles of one content model, with all references to groups expanded.
pub(super) const POSITIONS: usize = 5_000;
/// The particles of all content models together.
pub(super) const ALL_POSITIONS: usize = 50_000;
/// The entries of all tables that content models are run by.
pub(super) const TABLE_ENTRIES: usize = 500_000;
/// How many counters' states a content model may be in at once, where repetitions cannot be told apart.
pub(super) const CONFIGURATIONS: u64 = 32;
/// The members of all substitution groups together.
pub(super) const SUBSTITUTIONS: usize = 50_000;
/// The attributes that all types have together, inherited ones included.
pub(super) const ATTRIBUTES: usize = 100_000;
/// The steps of one class of checks that relate particles or types to each other.
pub(super) const CHECKS: usize = 500_000;
/// The types that a union consists of, with those of member unions.
pub(super) const MEMBERS: usize = 100;
/// The patterns that all types have together, inherited ones included.
pub(super) const PATTERNS: usize = 20_000;
/// The longest pattern, in bytes.
pub(super) const PATTERN_BYTES: usize = 4_096;
/// The positions of one pattern, with all repetitions expanded.
pub(super) const PATTERN_POSITIONS: usize = 20_000;
/// The steps that it may take to make a pattern's automaton.
pub(super) const PATTERN_WORK: usize = 1_000_000;
/// The steps that it may take to make the automata of all patterns of a schema.
pub(super) const ALL_PATTERN_WORK: usize = 3_000_000;
/// The entries of the table of one pattern's automaton.
pub(super) const PATTERN_TABLE: usize = 250_000;
/// The entries of the tables of all patterns of a schema.
pub(super) const ALL_PATTERN_TABLES: usize = 2_000_000;
/// The steps of an XPath, and of all XPaths of one identity constraint.
pub(super) const XPATH_STEPS: usize = 64;
/// The changes that a comparison reports.
pub(super) const CHANGES: usize = 1_000;
/// The pairs of components that a comparison looks at.
pub(super) const COMPARED: usize = 70_000;

/// The longest name of a namespace, in bytes: short prefixes stand for it again and again.
pub(super) const NAMESPACE_BYTES: usize = 4_096;
/// The namespace declarations in scope at any place of a document.
pub(super) const BINDINGS: usize = 128;
/// The steps that validating one document may take beyond reading it: characters compared with patterns, members of unions
/// that are tried, names of namespaces, defaults that stand for what is not written, and paths of identity constraints.
pub(super) const WORK: u64 = 20_000_000;
/// The bytes that keys of identity constraints and the fields that they are made of may take.
pub(super) const KEY_BYTES: usize = 8 << 20;
