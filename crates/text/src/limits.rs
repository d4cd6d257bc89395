//! Every bound on input that this crate accepts, in one place.

/// The most tokens a vocabulary may hold.
pub const VOCABULARY_TOKENS_MAX: usize = 1 << 22;
/// The longest spelling of one token, in bytes.
pub const TOKEN_BYTES_MAX: usize = 1 << 16;
/// The most merges a vocabulary may hold.
pub const MERGES_MAX: usize = 1 << 23;
/// The longest text that is encoded or rendered in one call, in bytes.
pub const TEXT_BYTES_MAX: usize = 16 << 20;
/// The longest chat template, in bytes.
pub const TEMPLATE_BYTES_MAX: usize = 128 << 10;
/// The most messages in one conversation.
pub const MESSAGES_MAX: usize = 1 << 16;
/// The fuel of one render before the conversation's own share. A unit pays for an instruction, a value looked at, or
/// 64 bytes, so fuel bounds time and memory alike.
pub const FUEL_BASE: u64 = 200_000;
/// What a render may spend on every value in the conversation beside its length; a message has at least three.
pub const FUEL_PER_VALUE: u64 = 700;
/// How often a template may copy or scan the whole conversation.
pub const FUEL_COPIES: u64 = 64;
/// The most fuel of a render, whatever the conversation: 256 MB, or less than a second.
pub const FUEL_MAX: u64 = 4_000_000;
/// How deep lists and maps may nest in a template's values.
pub const VALUE_DEPTH_MAX: usize = 64;
/// How deep a template's expressions may nest; `a + b + c` nests once per operator.
pub const EXPRESSION_DEPTH_MAX: usize = 1_000;
/// How deep macros of a template may call each other.
pub const CALL_DEPTH_MAX: usize = 100;
/// The stack of the thread that renders, in bytes, reserved and not used but by templates that mean harm: the longest
/// chain of lazy values that [`FUEL_MAX`] can build must fit.
pub const RENDER_STACK_BYTES: usize = 256 << 20;
/// Bytes of a call of a tool, with its arguments: more is text.
pub const TOOL_CALL_BYTES: usize = 1 << 20;
/// Bytes of a JSON schema that answers are held to.
pub const SCHEMA_BYTES_MAX: usize = 512 << 10;
/// Values in such a schema, with all that it holds.
pub const SCHEMA_VALUES_MAX: usize = 1 << 15;
/// How deep such a schema may nest.
pub const SCHEMA_DEPTH_MAX: usize = 128;
/// Patterns, formats and multiples that a schema may put together by `allOf` or beside `$ref`: work on texts that match all
/// of several expressions doubles with each.
pub const SCHEMA_JOINED_MAX: usize = 16;
/// `multipleOf`, and the product of those that are put together: a state for each remainder.
pub const SCHEMA_MULTIPLE_MAX: usize = 10_000;
/// Expressions in one `patternProperties`: each is compared with each.
pub const SCHEMA_PATTERN_PROPERTIES_MAX: usize = 100;
/// Bytes of a regular expression.
pub const REGEX_BYTES_MAX: usize = 64 << 10;
/// Bytes of a grammar.
pub const GRAMMAR_BYTES_MAX: usize = 512 << 10;
/// How deep groups of a grammar may nest.
pub const GRAMMAR_DEPTH_MAX: usize = 100;
/// Rules of a grammar in GBNF.
pub const GRAMMAR_RULES_MAX: usize = 4096;
/// Intersections (`&`) in a grammar, for the same reason as in schemas.
pub const GRAMMAR_JOINED_MAX: usize = 8;
/// Bytes of a text whose parts a grammar allows (`%regex`).
pub const GRAMMAR_PARTS_BYTES_MAX: usize = 16 << 10;
/// Bytes that a compiled grammar takes in its beginning.
pub const GRAMMAR_COMPILED_BYTES: usize = 16 << 20;
/// Choices of which an answer is one.
pub const CHOICES_MAX: usize = 1 << 14;
/// Work on the regular expressions of a grammar before its first token; 50,000 are a millisecond.
pub const GRAMMAR_FUEL: u64 = 1_000_000;
/// Symbols in the rules of a grammar.
pub const GRAMMAR_SYMBOLS: usize = 250_000;
/// States of a grammar's lexer while an answer is followed; each takes one or two kilobytes.
pub const GRAMMAR_STATES: usize = 20_000;
/// Work on regular expressions for one token's mask; 14,000 are a millisecond.
pub const MASK_FUEL: u64 = 50_000;
/// Items of the parser for one token's mask; 20,000 are a millisecond.
pub const MASK_ITEMS: usize = 25_000;
/// Work on all masks of one answer together.
pub const ANSWER_WORK_MAX: u64 = 1_000_000;
/// And for one byte: as many ways as a grammar may go at once.
pub const MASK_ROW_ITEMS: usize = 2_000;
/// The stack of the thread that compiles, in bytes, reserved and not used but by what nests deep.
pub const GRAMMAR_STACK_BYTES: usize = 256 << 20;
