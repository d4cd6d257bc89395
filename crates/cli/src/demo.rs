//! The demo model: a small GLM-5 that is part of the binary, so that a first command needs nothing else. How it was made
//! is in `tools/demo`; what runs it is what runs every other model.

use tombolo_gguf::{Gguf, GgufError};

/// What it is called where a model is named; a file of that name is `./demo`.
pub(crate) const NAME: &str = "demo";
/// Tokens of an answer where no number is asked for: its texts seldom come to an end.
pub(crate) const PREDICT: usize = 256;
/// What it is and is not, in one line.
pub(crate) const INTRODUCTION: &str = "this is the demo model: tiny, trained from scratch on old public-domain English, \
     for trying tombolo and not for answers; name a GGUF file to use another";

/// Bytes at an address that suits any number.
#[repr(C, align(64))]
struct Aligned<B: ?Sized>(B);

static FILE: &Aligned<[u8]> = &Aligned(*include_bytes!("../assets/demo.gguf"));

/// Opens it: nothing of its weights is copied.
pub(crate) fn open() -> Result<Gguf, GgufError> {
    Gguf::from_static(&FILE.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_text::Tokenizer;

    #[test]
    fn it_is_whole_and_small() {
        let gguf = open().unwrap();
        assert!(gguf.file_bytes() <= 6_000_000 && gguf.warnings().is_empty());
        assert_eq!(gguf.metadata().str("general.architecture"), Some("glm-dsa"));
        assert_eq!(FILE.0.as_ptr().addr() % 64, 0);
        let tokenizer = Tokenizer::from_metadata(gguf.metadata()).unwrap();
        assert_eq!(tokenizer.vocabulary(), 3584);
        assert_eq!((tokenizer.bos(), tokenizer.end_of_generation()), (Some(0), [0].as_slice()));
        assert!(tokenizer.encode("Once upon a time", true).unwrap().len() <= 5);
    }
}
