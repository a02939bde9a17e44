//! Stub.
use foretoken::*;
#[derive(Default)]
pub(crate) struct Scored {
    pub token: Token,
    pub log_probability: Option<f32>,
    pub top: Vec<(Token, f32)>,
}
pub(crate) trait Ext {
    fn method(&self, s: &SpecType, p: bool) -> std::result::Result<Method, Error>;
    fn is_prediction(&self, n: u8) -> bool;
}
impl Ext for Prompter {
    fn method(&self, s: &SpecType, _: bool) -> std::result::Result<Method, Error> {
        Ok(match s {
            SpecType::None => Method::default(),
            _ => self.methods[0].clone(),
        })
    }
    fn is_prediction(&self, _: u8) -> bool {
        false
    }
}
