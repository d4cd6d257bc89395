//! Models without a file: a header, and a function that makes a tensor's bytes when they are asked for. For random
//! weights of any size, of which only those that are used take memory.

use crate::cursor::Cursor;
use crate::file::{Gguf, Shard};
use crate::map::Data;
use crate::part::Part;
use crate::{GgufError, TensorInfo, assemble};
use std::sync::OnceLock;

/// Longer than any file: the tensors that a header declares lie within it.
const LENGTH: u64 = i64::MAX as u64;

/// The weights of a model without a file.
pub(crate) struct Made {
    make: Box<dyn Fn(&TensorInfo) -> Vec<u8> + Send + Sync>,
    tensors: Vec<OnceLock<Vec<u8>>>,
}

impl Made {
    /// Bytes of the tensor with that number, made now unless they are there already.
    pub(crate) fn bytes(&self, number: usize, info: &TensorInfo) -> &[u8] {
        let bytes = self.tensors[number].get_or_init(|| (self.make)(info));
        assert_eq!(bytes.len() as u64, info.bytes, "'{}' was made with another length", info.name);
        bytes
    }
}

impl Gguf {
    /// Whether its weights are made when they are asked for, and then held.
    pub fn is_made(&self) -> bool {
        self.made.is_some()
    }

    /// A model of a header, as [`Writer::finish_header`](crate::Writer::finish_header) ends it, whose weights `make`
    /// makes: for the same tensor always the same bytes, [`TensorInfo::bytes`] of them.
    ///
    /// # Errors
    /// As [`Gguf::open`].
    pub fn from_header(
        header: &[u8],
        make: impl Fn(&TensorInfo) -> Vec<u8> + Send + Sync + 'static,
    ) -> Result<Self, GgufError> {
        let part = Part::read(Cursor::new(header, None, LENGTH), None)?;
        let mut gguf = assemble::join(vec![part])?;
        let bytes = gguf.tensors.iter().map(|t| t.bytes).sum();
        gguf.made =
            Some(Made { make: Box::new(make), tensors: gguf.tensors.iter().map(|_| OnceLock::new()).collect() });
        gguf.shards
            .iter_mut()
            .for_each(|shard| *shard = Shard { trailing_bytes: 0, data: Data::Made(bytes), ..std::mem::take(shard) });
        Ok(gguf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TensorType, Writer};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn weights_are_made_once_and_only_when_asked_for() {
        let mut writer = Writer::new(Vec::new());
        writer.metadata("general.architecture", "none").unwrap();
        writer.tensor("small", &[4], TensorType::F32).unwrap();
        // Nobody has as much memory.
        writer.tensor("huge", &[1 << 20, 1 << 20, 64], TensorType::Q8_0).unwrap();
        let header = writer.header().unwrap();
        let made = Arc::new(AtomicUsize::new(0));
        let count = made.clone();
        let gguf = Gguf::from_header(&header, move |info| {
            count.fetch_add(1, Ordering::Relaxed);
            vec![7; info.bytes as usize]
        })
        .unwrap();
        assert_eq!(gguf.file_bytes(), 16 + (1u64 << 46) / 32 * 34);
        assert_eq!(gguf.warnings(), []);
        let info = gguf.tensor("small").unwrap();
        assert_eq!((gguf.bytes(info), gguf.bytes(info)), (&[7; 16][..], &[7; 16][..]));
        gguf.release(info);
        assert_eq!(made.load(Ordering::Relaxed), 1);
        gguf.check_unchanged().unwrap();
    }
}
