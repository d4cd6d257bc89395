//! The most that is taken from the command line, from standard input and from files that are no models: beyond it one
//! line says so, instead of the machine running out of something.

/// Threads on the processor: more than any machine has cores.
pub(crate) const THREADS_MAX: usize = 1024;
/// Tokens drafted for a step: guesses of guesses are soon worth nothing.
pub(crate) const DRAFT_MAX: usize = 16;
/// Sequences that a server runs at once.
pub(crate) const SEQUENCES_MAX: usize = 1024;
/// Bytes read from standard input as a prompt.
pub(crate) const PROMPT_BYTES_MAX: u64 = 16 << 20;
/// Bytes of one message of a chat.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Bytes of a file with reference logits, which is held in memory whole.
pub(crate) const REFERENCE_BYTES_MAX: u64 = 8 << 30;
/// Bytes of a file with a schema or grammar; what of it may be compiled is less.
pub(crate) const FORM_BYTES_MAX: u64 = 1 << 20;
/// Bytes of a file that lists tools.
pub(crate) const TOOLS_BYTES_MAX: u64 = 1 << 20;
/// Characters of a line on standard error.
pub(crate) const LINE_CHARS_MAX: usize = 300;
/// Characters of a model's name.
pub(crate) const NAME_CHARS_MAX: usize = 72;
/// Warnings about a model file that are printed one by one.
pub(crate) const WARNINGS_MAX: usize = 8;
/// Bytes of a description: of a machine, of a model's shape, of observations.
pub(crate) const TEXT_BYTES_MAX: u64 = 16 << 20;
/// Bytes of a model file that are looked at for its header, where the rest is missing.
pub(crate) const HEADER_BYTES_MAX: u64 = 256 << 20;
