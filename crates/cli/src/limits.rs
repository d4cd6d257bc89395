//! The most that is taken from the command line, from standard input and from files that are no models: beyond it one
//! line says so, instead of the machine running out of something.

use std::time::Duration;

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
/// Requests of a load.
pub(crate) const PROMPTS_MAX: usize = 1 << 20;
/// Requests of a load at once: a connection each.
pub(crate) const CLIENTS_MAX: usize = 1 << 16;
/// Bytes of a file of prompts.
pub(crate) const DATASET_BYTES_MAX: u64 = 1 << 30;
/// Bytes of one event that a server streams.
pub(crate) const EVENT_BYTES_MAX: usize = 4 << 20;
/// Bytes of an answer that is read whole.
pub(crate) const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Bytes of an answer's text that are kept for the detailed result.
pub(crate) const TEXT_KEPT_BYTES_MAX: usize = 1 << 20;
/// Bytes of one page of a hub's list of files, and pages.
pub(crate) const LISTING_BYTES_MAX: u64 = 32 << 20;
pub(crate) const LISTING_PAGES_MAX: usize = 100;
/// Redirects, one after the other.
pub(crate) const HOPS_MAX: usize = 10;
/// The longest that a hub is waited for where it names a time.
pub(crate) const RETRY_AFTER_MAX: Duration = Duration::from_secs(120);
/// Bytes of a file that is downloaded.
pub(crate) const DOWNLOAD_BYTES_MAX: u64 = 1 << 44;
/// Bytes of a file of certificates.
pub(crate) const CERTIFICATES_BYTES_MAX: u64 = 16 << 20;
/// Bytes of a configuration file.
pub(crate) const CONFIG_BYTES_MAX: u64 = 1 << 20;
