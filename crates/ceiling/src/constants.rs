//! What a step costs beside bytes and links: `data/step.toml`.

use crate::links::Source;
use serde::Deserialize;

const DATA: &str = include_str!("../data/step.toml");

/// A figure and where it is from.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// In the unit that its name says.
    pub value: f64,
    /// Where it is from.
    pub source: Source,
    /// What it is, in a line.
    pub why: String,
}

/// All of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constants {
    /// Of the peak bandwidth of a GPU's memory.
    pub read_efficiency: Figure,
    /// A dependent operation that stages its weights first.
    pub staged_op_us: Figure,
    /// A kernel after another.
    pub plain_op_us: Figure,
    /// A kernel that does next to nothing.
    pub light_op_us: Figure,
    /// Of the peak of matrix products.
    pub prefill_efficiency: Figure,
    /// Of every GPU's memory, for what is neither weights nor caches nor activations.
    pub reserve_gib: Figure,
}

impl Constants {
    /// Those of the data file, which is part of the program.
    pub fn stored() -> Self {
        toml::from_str(DATA).expect("the data file is tested")
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_data_file_is_whole() {
        let c = super::Constants::stored();
        for figure in [&c.read_efficiency, &c.staged_op_us, &c.plain_op_us, &c.light_op_us, &c.reserve_gib] {
            assert!(figure.value > 0.0 && !figure.why.is_empty());
        }
    }
}
