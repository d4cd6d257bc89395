//! Why a model cannot be built, one line each.

/// Why a file is not a model that can run, or not on so many ranks.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs)]
pub enum ModelError {
    #[error("architecture '{architecture}' is not supported; supported are: {known}")]
    UnknownArchitecture { architecture: String, known: String },
    #[error("architecture '{architecture}' is not supported: {why}")]
    OtherArchitecture { architecture: String, why: &'static str },
    #[error("the file has no metadata key '{key}', which its architecture needs")]
    MissingKey { key: String },
    #[error("'{key}' is {found}, where {wanted} is wanted")]
    WrongType { key: String, found: String, wanted: &'static str },
    #[error("'{key}' has a value that makes no model: {why}")]
    BadValue { key: String, why: String },
    #[error("'{key}' = {value} is not supported yet")]
    UnsupportedFeature { key: String, value: String },
    #[error("the file has no tensor '{tensor}', which its architecture needs")]
    MissingTensor { tensor: String },
    #[error(
        "the file has no tensor '{tensor}' of the indexer that chooses what is attended to; --dense-attention runs the \
         model without it, which is another model beyond {top_k} tokens"
    )]
    MissingIndexer { tensor: String, top_k: usize },
    #[error(
        "the file has no tensor '{tensor}' of the block that drafts tokens (MTP), though it has others of it; \
         --draft-max 0 runs the model without that block"
    )]
    MissingDraft { tensor: String },
    #[error("tensor '{tensor}' has type {ty}, which cannot be computed with yet")]
    UnsupportedType { tensor: String, ty: &'static str },
    #[error("tensor '{tensor}' has shape {shape:?}, but the metadata call for {wanted:?}")]
    WrongShape { tensor: String, shape: Vec<u64>, wanted: Vec<u64> },
    #[error(
        "tensor '{tensor}' is not part of the architecture as it is computed here: running without it would be wrong"
    )]
    ExtraTensor { tensor: String },
    #[error(
        "--tensor-parallel-size {size} cannot split tensor '{tensor}' ({ty}); this model can be split over {legal:?}"
    )]
    IllegalSplit { tensor: String, ty: &'static str, size: usize, legal: Vec<usize> },
    #[error("--tensor-parallel-size {size} is not between 1 and {most}")]
    BadSize { size: usize, most: usize },
}
