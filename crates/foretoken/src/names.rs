//! Names of the values of settings: in JSON, on command lines and in help.
//!
//! The lower crates know neither serde nor command lines, so this module names their values. Settings are serialized by
//! name through `#[serde(with = "names")]`.

use foretoken_drafters::{BranchSource, Layout, NgramSource, RetrievalRule};
use foretoken_engine::{EarlyStopping, TranslationWay};
use foretoken_model::{CacheType, WeightType};
use foretoken_speculation::Promise;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A value with a name.
pub trait Named: Sized {
    /// Its name.
    fn name(&self) -> String;
    /// The value of this name.
    fn named(name: &str) -> Option<Self>;
}

/// One of the values of a setting.
#[derive(Clone, Copy, Debug)]
pub struct NamedValue<T> {
    /// The value.
    pub value: T,
    /// Its name, followed by aliases.
    pub names: &'static [&'static str],
    /// Its description in help.
    pub help: &'static str,
}

impl<T> NamedValue<T> {
    /// A value with its names and its description in help.
    pub const fn new(value: T, names: &'static [&'static str], help: &'static str) -> Self {
        Self { value, names, help }
    }
}

/// A setting that is one of a few values, each with a name.
pub trait OneOf: Copy + PartialEq + 'static {
    /// All values, in the order of help.
    const VALUES: &'static [NamedValue<Self>];
}

impl<T: OneOf> Named for T {
    fn name(&self) -> String {
        let own = T::VALUES.iter().find(|one| one.value == *self);
        own.map_or_else(String::new, |one| one.names[0].to_string())
    }

    fn named(name: &str) -> Option<Self> {
        T::VALUES.iter().find(|one| one.names.contains(&name)).map(|one| one.value)
    }
}

pub(crate) fn serialize<T: Named, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&value.name())
}

pub(crate) fn deserialize<'a, T: Named, D: Deserializer<'a>>(deserializer: D) -> Result<T, D::Error> {
    parse(&String::deserialize(deserializer)?)
}

fn parse<T: Named, E: de::Error>(name: &str) -> Result<T, E> {
    T::named(name).ok_or_else(|| E::custom(format!("expected a name that is known, found {name:?}")))
}

/// Serialization of optional values by name.
pub(crate) mod optional {
    use super::{Deserialize, Deserializer, Named, Serialize, Serializer, parse};

    pub(crate) fn serialize<T: Named, S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
        value.as_ref().map(Named::name).serialize(serializer)
    }

    pub(crate) fn deserialize<'a, T: Named, D: Deserializer<'a>>(deserializer: D) -> Result<Option<T>, D::Error> {
        Option::<String>::deserialize(deserializer)?.map(|name| parse(&name)).transpose()
    }
}

impl OneOf for Promise {
    const VALUES: &'static [NamedValue<Self>] = &[
        NamedValue::new(Self::Exact, &["exact"], "The same seed gives the same text as plain decoding, byte for byte"),
        NamedValue::new(Self::Rejection, &["rejection"], "The same distribution as plain decoding"),
        NamedValue::new(Self::Block, &["block"], "The same distribution, a chain verified as one block"),
    ];
}

impl OneOf for TranslationWay {
    const VALUES: &'static [NamedValue<Self>] = &[
        NamedValue::new(
            Self::ByPromise,
            &["auto"],
            "Text for greedy requests, under exact, and where vocabularies share little; else shared",
        ),
        NamedValue::new(Self::Text, &["text", "uag"], "Its text is translated (universal assisted generation)"),
        NamedValue::new(
            Self::Shared,
            &["shared", "tli"],
            "Its law over the tokens that both vocabularies have (token-level intersection)",
        ),
    ];
}

impl OneOf for EarlyStopping {
    const VALUES: &'static [NamedValue<Self>] = &[
        NamedValue::new(Self::True, &["true"], "As soon as there are as many finished hypotheses as beams"),
        NamedValue::new(Self::False, &["false"], "When the best running beam scores no better now than those"),
        NamedValue::new(Self::Never, &["never"], "When no running beam can score better than the finished ones"),
    ];
}

impl OneOf for NgramSource {
    const VALUES: &'static [NamedValue<Self>] = &[
        NamedValue::new(Self::Corpus, &["corpus"], "Other texts, and those of earlier runs"),
        NamedValue::new(Self::Text, &["text"], "The running text, prompt included"),
        NamedValue::new(Self::Both, &["both"], "Both"),
    ];
}

impl OneOf for RetrievalRule {
    const VALUES: &'static [NamedValue<Self>] = &[
        NamedValue::new(Self::Interpolated, &["interpolated"], "By estimated acceptance, from prefixes of all lengths"),
        NamedValue::new(Self::Frequency, &["frequency"], "By frequency, prompts before outputs, as the authors do"),
    ];
}

impl Named for CacheType {
    fn name(&self) -> String {
        CacheType::name(*self).to_string()
    }

    fn named(name: &str) -> Option<Self> {
        CacheType::ALL.into_iter().find(|kind| CacheType::name(*kind) == name)
    }
}

impl Named for WeightType {
    fn name(&self) -> String {
        self.to_string()
    }

    fn named(name: &str) -> Option<Self> {
        name.parse().ok()
    }
}

impl Named for Layout {
    fn name(&self) -> String {
        Layout::name(*self).to_string()
    }

    fn named(name: &str) -> Option<Self> {
        Layout::from_name(name)
    }
}

impl Named for BranchSource {
    fn name(&self) -> String {
        BranchSource::name(*self).to_string()
    }

    fn named(name: &str) -> Option<Self> {
        BranchSource::from_name(name)
    }
}
