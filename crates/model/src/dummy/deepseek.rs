//! `deepseek2` (DeepSeek-V3, Kimi-K2): what `glm-dsa` was made of, without the indexer.

use super::{Blueprint, Glm};

/// A `deepseek2` model's shape, in the words of the larger architecture; what it says of the indexer is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeepSeek(pub Glm);

impl DeepSeek {
    /// DeepSeek-V3's shape, 671 billion parameters.
    pub const V3: Self = Self(Glm {
        hidden: 7168,
        layers: 61,
        heads: 128,
        q_rank: 1536,
        nope: 128,
        value: 128,
        feed_forward: 18432,
        vocabulary: 129_280,
        context: 163_840,
        ..Glm::GLM_5
    });

    /// Kimi-K2's shape, a trillion parameters.
    pub const KIMI_K2: Self = Self(Glm {
        dense_layers: 1,
        drafts: false,
        heads: 64,
        experts: 384,
        vocabulary: 163_840,
        context: 131_072,
        ..Self::V3.0
    });

    /// The model's header.
    pub fn blueprint(&self) -> Blueprint {
        let glm = self.0.blueprint();
        let indexer = |name: &str| name.contains("indexer.");
        let named = |(key, value): (String, tombolo_gguf::Value)| match key.strip_prefix("glm-dsa.") {
            Some(rest) => (format!("deepseek2.{rest}"), value),
            None if key == "general.architecture" => (key, "deepseek2".into()),
            None => (key, value),
        };
        Blueprint {
            metadata: glm.metadata.into_iter().filter(|(key, _)| !indexer(key)).map(named).collect(),
            tensors: glm.tensors.into_iter().filter(|(name, ..)| !indexer(name)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_sizes_are_met() {
        for (shape, billions) in
            [(DeepSeek(Glm { drafts: false, ..DeepSeek::V3.0 }), 671.0), (DeepSeek::KIMI_K2, 1026.0)]
        {
            let tensors = shape.blueprint().tensors;
            let parameters: u64 = tensors.iter().map(|(_, dims, _)| dims.iter().product::<u64>()).sum();
            assert!((parameters as f64 / 1e9 - billions).abs() < 2.0, "{parameters}");
        }
    }
}
