//! Tiny models, and the same with something changed.
#![allow(dead_code)]

use std::path::Path;
use tombolo_gguf::{Gguf, TensorType, Value, Writer};
use tombolo_model::{Config, ModelError, Program, Shard};

pub(crate) fn open(name: &str) -> Gguf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    Gguf::open(&path).unwrap()
}

pub(crate) fn program(name: &str, rank: usize, size: usize) -> Program {
    let gguf = open(name);
    let config = Config::from_gguf(&gguf).unwrap();
    Program::build(&gguf, &config, Shard { rank, size }).unwrap()
}

/// A tensor with its bytes.
#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dims: Vec<u64>,
    pub(crate) ty: TensorType,
    pub(crate) bytes: Vec<u8>,
}

/// A file taken apart.
pub(crate) struct Parts {
    pub(crate) metadata: Vec<(String, Value)>,
    pub(crate) tensors: Vec<Tensor>,
}

impl Parts {
    pub(crate) fn of(name: &str) -> Self {
        let gguf = open(name);
        let tensors = gguf.tensors().iter().map(|t| Tensor {
            name: t.name.clone(),
            dims: t.dims.clone(),
            ty: t.ty,
            bytes: gguf.bytes(t).to_vec(),
        });
        let metadata = gguf.metadata().iter().map(|(key, value)| (key.to_string(), value.clone()));
        Self { metadata: metadata.collect(), tensors: tensors.collect() }
    }

    /// Sets a key, whether it was there or not.
    pub(crate) fn set(mut self, key: &str, value: impl Into<Value>) -> Self {
        let value = value.into();
        match self.metadata.iter_mut().find(|(k, _)| k == key) {
            Some(place) => place.1 = value,
            None => self.metadata.push((key.to_string(), value)),
        }
        self
    }

    /// Leaves out a key or tensor that is there.
    pub(crate) fn without(mut self, name: &str) -> Self {
        let before = self.metadata.len() + self.tensors.len();
        self.metadata.retain(|(key, _)| key != name);
        self.tensors.retain(|t| t.name != name);
        assert_eq!(self.metadata.len() + self.tensors.len(), before - 1, "{name}");
        self
    }

    /// Adds a tensor with the contents of another.
    pub(crate) fn copy(mut self, of: &str, name: &str) -> Self {
        let copy = Tensor { name: name.to_string(), ..self.tensor(of).clone() };
        self.tensors.push(copy);
        self
    }

    pub(crate) fn tensor(&self, name: &str) -> &Tensor {
        self.tensors.iter().find(|t| t.name == name).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    /// Puts the rows of tensors, matrix by matrix, one after the other into a new tensor; they are gone then.
    pub(crate) fn joined(mut self, names: &[&str], into: &str) -> Self {
        let parts: Vec<Tensor> = names.iter().map(|name| self.tensor(name).clone()).collect();
        let vector = parts[0].dims.len() == 1;
        let matrices = if vector { 1 } else { parts[0].dims.get(2).copied().unwrap_or(1) as usize };
        let mut dims = parts[0].dims.clone();
        dims[usize::from(!vector)] = parts.iter().map(|t| t.dims[usize::from(!vector)]).sum();
        let mut bytes = Vec::new();
        for m in 0..matrices {
            for part in &parts {
                let len = part.bytes.len() / matrices;
                bytes.extend_from_slice(&part.bytes[m * len..(m + 1) * len]);
            }
        }
        for name in names {
            self = self.without(name);
        }
        self.tensors.push(Tensor { name: into.to_string(), dims, ty: parts[0].ty, bytes });
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut writer = Writer::new(std::io::Cursor::new(Vec::new()));
        for (key, value) in &self.metadata {
            writer.metadata(key, value.clone()).unwrap();
        }
        for t in &self.tensors {
            writer.tensor(&t.name, &t.dims, t.ty).unwrap();
        }
        writer.finish_header().unwrap();
        for t in &self.tensors {
            writer.data(&t.bytes).unwrap();
        }
        writer.finish().unwrap().into_inner()
    }

    pub(crate) fn gguf(&self) -> Gguf {
        Gguf::from_bytes(self.bytes()).unwrap()
    }

    pub(crate) fn config(&self) -> Result<Config, ModelError> {
        Config::from_gguf(&self.gguf())
    }

    /// What is wrong with it.
    pub(crate) fn fault(&self, size: usize) -> ModelError {
        let gguf = self.gguf();
        let built = Config::from_gguf(&gguf).and_then(|c| Program::build(&gguf, &c, Shard { rank: 0, size }));
        built.expect_err("the file makes a model")
    }
}
