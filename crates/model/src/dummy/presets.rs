//! The models that can be named instead of a file, as `dummy:<preset>`.

use super::{Blueprint, Dense, Glm, QwenMoe};

/// A model that needs no file.
pub struct Preset {
    /// Its name after `dummy:`.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    blueprint: fn() -> Blueprint,
}

impl Preset {
    /// Its header.
    pub fn blueprint(&self) -> Blueprint {
        (self.blueprint)()
    }
}

/// All of them.
pub const PRESETS: &[Preset] = &[
    Preset { name: "tiny", about: "llama of a megabyte, for a first try", blueprint: || Dense::TINY.blueprint() },
    Preset { name: "8b", about: "Llama-3-8B's shape, Q4_K and Q6_K", blueprint: || Dense::LLAMA_8B.blueprint() },
    Preset {
        name: "30b-a3b",
        about: "Qwen3-30B-A3B's shape, Q4_K and Q6_K",
        blueprint: || QwenMoe::QWEN3_30B_A3B.blueprint(),
    },
    Preset { name: "glm5", about: "GLM-5 whole, with its drafting block", blueprint: || Glm::GLM_5.blueprint() },
    Preset {
        name: "glm5-8l",
        about: "GLM-5 cut to 8 layers, 3 of them dense",
        blueprint: || Glm { layers: 8, drafts: false, ..Glm::GLM_5 }.blueprint(),
    },
    Preset {
        name: "glm5-tp8-rank",
        about: "what one of eight ranks holds of GLM-5, as a model of its own",
        blueprint: || Glm::GLM_5_RANK_OF_8.blueprint(),
    },
];

/// The preset of that name.
pub fn preset(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|p| p.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_gguf::TensorType;

    fn parameters(b: &Blueprint) -> u64 {
        b.tensors.iter().map(|(_, dims, _)| dims.iter().product::<u64>()).sum()
    }

    #[test]
    fn glm_5_has_the_published_size() {
        let b = preset("glm5").unwrap().blueprint();
        assert_eq!(b.tensors.len(), 1809);
        assert_eq!(b.tensors.iter().filter(|(_, _, ty)| *ty == TensorType::F32).count(), 709);
        assert_eq!(b.tensors.iter().filter(|(_, _, ty)| *ty == TensorType::Q4_K).count(), 228);
        let billions = parameters(&b) as f64 / 1e9;
        assert!((billions - 753.86).abs() < 0.01, "{billions}");
        let gib = b.open_size() as f64 / f64::from(1 << 30);
        assert!((gib - 404.3).abs() < 1.0, "{gib}");
    }

    #[test]
    fn the_others_have_theirs() {
        for (name, billions) in [("8b", 8.03), ("30b-a3b", 30.53)] {
            let found = parameters(&preset(name).unwrap().blueprint()) as f64 / 1e9;
            assert!((found - billions).abs() < 0.01, "{name}: {found}");
        }
        assert!(preset("glm").is_none());
    }

    impl Blueprint {
        fn open_size(&self) -> u64 {
            self.open(super::super::SEED).unwrap().file_bytes()
        }
    }
}
