//! The further models of a server: those of a repeated `-m`, and those of the hub's cache.
//!
//! They are run as the first one is, but for what belongs to it alone: its draft models, the files that are kept of it,
//! and its chat template. Left out: opening them, which the server does when a request names them.

use std::path::PathBuf;

use foretoken::settings::{ModelSettings, SpeculationSettings};
use foretoken::{Settings, SpecType};
use foretoken_console::failure::Failure;
use foretoken_console::hub;
use foretoken_server::ModelOffer;

/// The further models. `named`: paths and names of the hub, as they were given; those are fetched that are not in its
/// cache. `cached`: further names and paths, of which those are left out that are there already.
///
/// # Errors
/// One that is named cannot be had.
pub fn offers(named: &[PathBuf], cached: Vec<(String, PathBuf)>, first: &Settings) -> Result<Vec<ModelOffer>, Failure> {
    let mut offers: Vec<ModelOffer> = Vec::new();
    for model in named {
        let settings = settings_of(hub::resolved(model)?, first);
        let offer = ModelOffer::new(settings);
        let name = hub::name_asked(Some(model), &Default::default());
        offers.push(ModelOffer { name: name.unwrap_or(offer.name), ..offer });
    }
    let path_of = |settings: &Settings| settings.model.path.clone();
    for (name, path) in cached {
        let is_there = path_of(first).as_ref() == Some(&path)
            || offers.iter().any(|offer| offer.name == name || path_of(&offer.settings).as_ref() == Some(&path));
        if !is_there {
            offers.push(ModelOffer { name, settings: settings_of(path, first) });
        }
    }
    Ok(offers)
}

/// The settings of the first model without what is its own.
fn settings_of(path: PathBuf, first: &Settings) -> Settings {
    let asked = &first.speculation;
    let needs_model = matches!(&asked.spec_type, SpecType::Drafters(all) if all.iter().any(|one| one.models() > 0));
    Settings {
        model: ModelSettings { path: Some(path), chat_template: None, prompt_cache: None, ..first.model.clone() },
        speculation: SpeculationSettings {
            spec_type: if needs_model { SpecType::Auto } else { asked.spec_type.clone() },
            model_draft: Vec::new(),
            costs: None,
            memory: Default::default(),
            ..asked.clone()
        },
        ..first.clone()
    }
}
