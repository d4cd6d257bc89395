//! placeholder
use std::path::Path;
pub(crate) fn run(_root: &Path) -> anyhow::Result<()> {
    Ok(())
}
