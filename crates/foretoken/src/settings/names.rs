//! Serialization of values of lower crates by their names, which are those of the command line.
//!
//! The lower crates do not depend on serde, so the names are given here.

use foretoken_drafters::NgramSource;
use foretoken_drafters::{BranchSource, Layout};
use foretoken_engine::TranslationWay;
use foretoken_model::{CacheType, WeightType};
use foretoken_speculation::Promise;
use serde::{Deserialize, Deserializer, Serializer, de};

/// A value with a name.
pub(crate) trait Named: Sized {
    /// Its name.
    fn name(&self) -> String;
    /// The value of this name.
    fn named(name: &str) -> Option<Self>;
}

pub(crate) fn serialize<T: Named, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&value.name())
}

pub(crate) fn deserialize<'a, T: Named, D: Deserializer<'a>>(deserializer: D) -> Result<T, D::Error> {
    let name = String::deserialize(deserializer)?;
    T::named(&name).ok_or_else(|| de::Error::custom(format!("expected a name that is known, found {name:?}")))
}

/// The same for optional values.
pub(crate) mod optional {
    use super::{Deserialize, Deserializer, Named, Serializer, de};

    pub(crate) fn serialize<T: Named, S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => serializer.serialize_some(&value.name()),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'a, T: Named, D: Deserializer<'a>>(deserializer: D) -> Result<Option<T>, D::Error> {
        let Some(name) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
        let unknown = || de::Error::custom(format!("expected a name that is known, found {name:?}"));
        T::named(&name).map(Some).ok_or_else(unknown)
    }
}

/// Implements [`Named`] by a list of all values.
macro_rules! listed {
    ($type:ty: $($name:literal => $value:path),*) => {
        impl Named for $type {
            fn name(&self) -> String {
                match self {
                    $($value => $name.to_string(),)*
                }
            }

            fn named(name: &str) -> Option<Self> {
                match name {
                    $($name => Some($value),)*
                    _ => None,
                }
            }
        }
    };
}

listed!(Promise: "exact" => Promise::Exact, "rejection" => Promise::Rejection, "block" => Promise::Block);
listed!(TranslationWay: "auto" => TranslationWay::ByPromise, "text" => TranslationWay::Text,
    "shared" => TranslationWay::Shared);
listed!(NgramSource: "corpus" => NgramSource::Corpus, "text" => NgramSource::Text, "both" => NgramSource::Both);

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
