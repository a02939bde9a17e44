//! Further models of a server: those of a repeated `-m`, and those of the hub's cache.
//!
//! They have the settings of the first model, except for what belongs to it alone: its draft models, its prompt cache
//! and memory files, and its chat template. The server opens them when a request names them.

use std::path::PathBuf;

use foretoken::settings::{ModelSettings, SpeculationSettings};
use foretoken::{Settings, SpecType};
use foretoken_console::failure::Failure;
use foretoken_console::hub;
use foretoken_server::ModelOffer;

/// The further models. `named`: paths and hub names as given; names that are not in the cache are fetched. `cached`:
/// names and paths from the cache; models that are already offered are left out.
///
/// # Errors
/// A named model is not available.
pub fn offers(named: &[PathBuf], cached: Vec<(String, PathBuf)>, first: &Settings) -> Result<Vec<ModelOffer>, Failure> {
    let mut offers: Vec<ModelOffer> = Vec::new();
    for model in named {
        let settings = settings_of(hub::resolve(model)?, first);
        let offer = ModelOffer::new(settings);
        let name = hub::requested_name(Some(model), &Default::default());
        offers.push(ModelOffer { name: name.unwrap_or(offer.name), ..offer });
    }
    let path_of = |settings: &Settings| settings.model.path.clone();
    for (name, path) in cached {
        let is_known = path_of(first).as_ref() == Some(&path)
            || offers.iter().any(|offer| offer.name == name || path_of(&offer.settings).as_ref() == Some(&path));
        if !is_known {
            offers.push(ModelOffer { name, settings: settings_of(path, first) });
        }
    }
    Ok(offers)
}

/// The settings of the first model, without what belongs to it alone.
fn settings_of(path: PathBuf, first: &Settings) -> Settings {
    let speculation = &first.speculation;
    let needs_model =
        matches!(&speculation.spec_type, SpecType::Drafters(all) if all.iter().any(|one| one.models() > 0));
    Settings {
        model: ModelSettings { path: Some(path), chat_template: None, prompt_cache: None, ..first.model.clone() },
        speculation: SpeculationSettings {
            spec_type: if needs_model { SpecType::Auto } else { speculation.spec_type.clone() },
            model_draft: Vec::new(),
            costs: None,
            memory: Default::default(),
            ..speculation.clone()
        },
        ..first.clone()
    }
}
