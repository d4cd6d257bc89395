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
