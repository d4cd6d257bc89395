//! Models with random weights: every shape that speed work and tests need, without a download. A [`Blueprint`] is what
//! such a model's header says; its weights are made of a seed ([`weights`]), in memory or into a file.
//!
//! Not here: what the metadata mean (`config`), and how a file is written (`gguf`).

mod deepseek;
mod dense;
mod glm;
mod presets;
mod qwen_moe;
pub mod weights;

pub use deepseek::DeepSeek;
pub use dense::{Dense, Family};
pub use glm::Glm;
pub use presets::{PRESETS, Preset, preset};
pub use qwen_moe::QwenMoe;

use tombolo_gguf::quant::QuantError;
use tombolo_gguf::{Gguf, GgufError, TensorType, Value, WriteError, Writer};

/// Seed of the presets' weights.
pub const SEED: u64 = 1;

/// The header of a model: metadata and tensors, in the file's order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Blueprint {
    /// Keys and values, without a tokenizer's.
    pub metadata: Vec<(String, Value)>,
    /// Name, lengths (in-features first) and type of every tensor.
    pub tensors: Vec<(String, Vec<u64>, TensorType)>,
}

/// Why there is no such model.
#[derive(Debug, thiserror::Error)]
pub enum DummyError {
    /// A shape that the type cannot have.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The reader refuses it.
    #[error(transparent)]
    Read(#[from] GgufError),
    /// No weights can be made of a type.
    #[error(transparent)]
    Quant(#[from] QuantError),
}

impl Blueprint {
    fn key(&mut self, key: &str, value: impl Into<Value>) {
        self.metadata.push((key.into(), value.into()));
    }

    fn tensor(&mut self, name: impl Into<String>, dims: &[u64], ty: TensorType) {
        self.tensors.push((name.into(), dims.to_vec(), ty));
    }

    /// Tells a writer of all metadata and tensors. Without a tokenizer the model says that it has none.
    ///
    /// # Errors
    /// A shape that the type cannot have.
    pub fn describe<W: std::io::Write>(
        &self,
        writer: &mut Writer<W>,
        tokenizer: Option<&Gguf>,
    ) -> Result<(), WriteError> {
        for (key, value) in &self.metadata {
            writer.metadata(key, value.clone())?;
        }
        match tokenizer {
            None => {
                writer.metadata("tokenizer.ggml.model", "no_vocab")?;
            }
            Some(file) => {
                for (key, value) in file.metadata().iter().filter(|(key, _)| key.starts_with("tokenizer.")) {
                    writer.metadata(key, value.clone())?;
                }
            }
        }
        for (name, dims, ty) in &self.tensors {
            writer.tensor(name, dims, *ty)?;
        }
        Ok(())
    }

    /// The model, its weights made of `seed` when they are asked for.
    ///
    /// # Errors
    /// A shape that the type cannot have, a type that no weights can be made of.
    pub fn open(&self, seed: u64) -> Result<Gguf, DummyError> {
        let mut writer = Writer::new(Vec::new());
        self.describe(&mut writer, None)?;
        for (_, _, ty) in &self.tensors {
            weights::check(*ty)?;
        }
        let make = move |info: &tombolo_gguf::TensorInfo| {
            weights::bytes(info, seed).expect("the type was checked, and numbers are finite")
        };
        Ok(Gguf::from_header(&writer.header()?, make)?)
    }
}
