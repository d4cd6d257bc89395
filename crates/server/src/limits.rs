//! The most that is taken from whoever speaks to the server, in one place.

/// Connections at once, where no other number is asked for.
pub const CONNECTIONS: usize = 8192;
/// Bytes of a request's body, where no other number is asked for.
pub const BODY_BYTES: usize = 16 << 20;
/// Bytes of a request's head.
pub const HEAD_BYTES: usize = 64 << 10;
/// Lines of a request's head.
pub const HEADERS: usize = 100;
/// Bytes of a path with its query.
pub const PATH_BYTES: usize = 4096;
/// Names in all objects of a body together.
pub const JSON_KEYS: usize = 1 << 16;
/// Values of a body together; prompts of token ids are the most of them.
pub const JSON_VALUES: usize = 1 << 21;
/// Sequences that one request may ask for: prompts times `n`.
pub const CHOICES: usize = 128;
/// Requests that wait for the engine to look at them.
pub const ASKS: usize = 1024;
/// Requests that wait in the engine's queue, where no other number is asked for.
pub const WAITING: usize = 512;
/// What may have happened to a choice and not been read yet: beyond it the reader is too slow.
pub const UPDATES: usize = 256;
/// Stop strings of a request.
pub const STOPS: usize = 32;
/// Bytes of a stop string.
pub const STOP_BYTES: usize = 1024;
/// Token ids that end a request, or that it is limited to.
pub const TOKEN_IDS: usize = 1 << 16;
/// Entries of `logit_bias`.
pub const BIASES: usize = 1024;
/// Likeliest tokens that are told beside each.
pub const TOP_LOGPROBS: u64 = 20;
/// Bytes that the log-probabilities of prompts and answers may take.
pub const LOGPROBS_BYTES: usize = 64 << 20;
/// Tools of a request.
pub const TOOLS: usize = 1024;
/// Bytes of a tool's name.
pub const TOOL_NAME_BYTES: usize = 256;
/// Tokens of a call to `/detokenize`.
pub const DETOKENIZE_TOKENS: usize = 1 << 20;
/// Renderings and encodings at once: they are work for processors.
pub const TEXT_AT_ONCE: usize = 4;
/// Characters of what is told back to a client of its own input.
pub const ECHO_CHARS: usize = 200;
/// Bytes of an API key.
pub const KEY_BYTES: usize = 4096;
/// Constraints on answers that are compiled at once: they are work for processors, and some of it is long.
pub const GRAMMARS_AT_ONCE: usize = 2;
/// Seconds that one may take.
pub const GRAMMAR_SECONDS: u64 = 10;
/// Seconds that a request waits for its turn.
pub const GRAMMAR_WAIT_SECONDS: u64 = 30;
/// Compiled constraints that are kept for the next request with the same.
pub const GRAMMARS_KEPT: usize = 64;
/// And bytes of all of them together, about.
pub const GRAMMARS_KEPT_BYTES: usize = 128 << 20;
