//! Which model a plan is for: a file, its header, a config, or a name.

use crate::args::Source;
use crate::error::{Error, failure, input};
use crate::limits::HEADER_BYTES_MAX;
use crate::{load, output};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use tombolo_ceiling::shape::{self, NAMED, RECIPES, Recipe};
use tombolo_gguf::Gguf;
use tombolo_model::dummy;

/// Opens a model; of its weights nothing is read.
pub(super) fn open(name: &Path, quant: Option<&str>) -> Result<Arc<Gguf>, Error> {
    let recipe = quant.map(recipe).transpose()?;
    let is_config = name.extension().is_some_and(|e| e.eq_ignore_ascii_case("json"));
    if is_config {
        let text = super::machine::text_of(name)?;
        let title = name.parent().and_then(Path::file_name).unwrap_or(name.as_os_str()).to_string_lossy();
        let recipe = recipe.map_or_else(|| self::recipe("q4_k_m"), Ok)?;
        let blueprint = shape::from_config(&text, &title, recipe);
        let blueprint = blueprint.map_err(|e| input(format!("{}: {e}", name.display())))?;
        return blueprint.open(dummy::SEED).map(Arc::new).map_err(|e| input(format!("{}: {e}", name.display())));
    }
    let named = name.to_str().and_then(shape::named).filter(|_| !name.exists());
    if let Some(named) = named {
        let recipe = recipe.map_or_else(|| self::recipe(named.recipe), Ok)?;
        return named.blueprint(recipe).open(dummy::SEED).map(Arc::new).map_err(failure);
    }
    if quant.is_some() {
        return Err(input("--quant is for models without a file: a file has its types"));
    }
    let source = Source::of(Some(name));
    if let Source::File(path) = &source
        && !path.exists()
    {
        let known: Vec<&str> = NAMED.iter().map(|n| n.name).collect();
        return Err(input(format!(
            "{}: there is no such file, and no model of that name is known; known are {}",
            path.display(),
            known.join(", ")
        )));
    }
    match load::open(&source) {
        Err(error) => header_alone(&source).ok_or(error),
        found => found,
    }
}

/// The beginning of a file is enough.
fn header_alone(source: &Source) -> Option<Arc<Gguf>> {
    let mut header = Vec::new();
    let path = source.path()?;
    // To open a pipe would wait for its other end.
    let file = path.is_file().then(|| std::fs::File::open(path))?.ok()?;
    file.take(HEADER_BYTES_MAX).read_to_end(&mut header).ok()?;
    let gguf = Gguf::from_header(&header, |_| Vec::new()).ok()?;
    output::say("only the header of this file is here: enough for a plan");
    Some(Arc::new(gguf))
}

fn recipe(name: &str) -> Result<Recipe, Error> {
    let known = || RECIPES.map(|r| r.name).join(", ");
    shape::recipe(name).ok_or_else(|| input(format!("--quant {name}: there is no such recipe; there are {}", known())))
}
