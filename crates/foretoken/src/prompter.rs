//! Creates requests from prompts and settings, on any thread and without the engine.
//!
//! The engine belongs to one thread, and users to others. A [`Prompter`] is shared between all of them (`Arc`): it has
//! the target's files, its tokenizer and chat template, and the generator's decided settings, none of which change once
//! the generator is open. So prompts are tokenized and requests created while an [`EngineThread`](crate::EngineThread)
//! runs.

pub(crate) mod source;

use std::sync::{Arc, OnceLock};

use foretoken_engine::{BudgetKind, Forcing, Order, Request, ThinkingWords, guided, guided_after_thoughts};
use foretoken_speculation::{DraftSettings, Promise, Token};
use foretoken_text::{
    ChatInput, ChatTemplate, Json, Spelling, TextError, Thinking, ThinkingTags, Tokenizer, Transcript,
};

use crate::error::Message;
use crate::models::Opened;
use crate::prompts::{Prompt, text_tokens};
use crate::settings::{DecidedSampling, GrammarForcing, SamplingSettings, SpeculationSettings, check_ends};
use crate::spec_type::{DrafterKind, DrafterSpec, SpecType};
use crate::{Error, n_best};

/// Creates requests for a generator, on any thread.
pub struct Prompter {
    /// The target's files.
    pub target: Opened,
    /// The target's tokenizer, if it has one.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// The sampling parameters of the generator's own settings, and who decided each.
    pub decided: DecidedSampling,
    /// Names of the drafters, by number; no two are equal.
    pub names: Vec<String>,
    /// The methods of drafting that the generator was opened with, at least one.
    pub methods: Vec<Method>,
    /// Tokens that a sequence can have, prompt included.
    pub context: usize,
    /// Whether the target has recurrent states, of which checkpoints are kept where prompts are likely to diverge.
    pub(crate) has_states: bool,
    /// Keys of the drafters by number: the specification with the number of its first draft model.
    pub(crate) drafter_keys: Vec<(DrafterSpec, usize)>,
    pub(crate) drafting: Drafting,
    /// The chat template that is used instead of the target's.
    pub(crate) template_setting: Option<String>,
    pub(crate) template: OnceLock<Result<Option<ChatTemplate>, Error>>,
    /// Tokenizes strings that a grammar forces; created for the first request with a grammar.
    pub(crate) spelling: OnceLock<Option<Arc<Spelling>>>,
    /// The tags around the model's thinking, if it has any.
    pub(crate) thinking: OnceLock<Option<ModelThinking>>,
}

/// The tags around a model's thinking.
pub(crate) struct ModelThinking {
    tags: ThinkingTags,
    /// The tags that are special tokens.
    special: Arc<[Token]>,
    /// The tokens of the vocabulary that matter for the tags; created for the first request that may think and has a
    /// grammar.
    words: OnceLock<Arc<ThinkingWords>>,
}

/// One method of drafting: which drafters, and in which order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Method {
    /// The numbers of the drafters.
    pub drafters: Vec<u8>,
    /// The order in which they draft.
    pub order: Order,
}

/// The fields of requests about drafting, besides the drafters.
#[derive(Clone, Debug)]
pub(crate) struct Drafting {
    promise: Promise,
    lossy_lenience: f32,
    budget: BudgetKind,
    settings: DraftSettings,
}

impl Drafting {
    /// What the settings say, with this budget.
    pub(crate) fn new(speculation: &SpeculationSettings, budget: BudgetKind) -> Self {
        let SpeculationSettings { verify: promise, lossy_lenience, .. } = *speculation;
        Self { promise, lossy_lenience, budget, settings: speculation.request_draft_settings() }
    }
}

impl Prompter {
    /// The number of tokens that can be read and written ([`Opened::tokens`]).
    pub fn tokens(&self) -> usize {
        self.target.tokens(self.tokenizer.as_deref())
    }

    /// Decides the sampling parameters of one request: by these settings, else the model's own files, else the
    /// program's defaults. The generator's own settings do not count: a front end that lets users change some of them
    /// starts with a copy of them. If no seed is set, one is drawn.
    ///
    /// # Errors
    /// A value out of its range, or stop strings for a model without a tokenizer.
    pub fn decide(&self, settings: &SamplingSettings) -> Result<DecidedSampling, Error> {
        settings.decided(&self.target, self.tokenizer.as_deref())
    }

    /// A request that continues a prompt, with the generator's own settings and its first method.
    ///
    /// Its tenant, prediction, promise, drafters and budget can be changed before it is submitted.
    ///
    /// # Errors
    /// The prompt is a text and the model has no tokenizer, or it is empty and the model has no beginning-of-text
    /// token; or the model is an encoder-decoder, which needs a source ([`Prompter::request_with_source`]).
    pub fn request(&self, prompt: impl Into<Prompt>) -> Result<Request, Error> {
        self.request_by(prompt, &self.decided)
    }

    /// As [`Prompter::request`], with sampling parameters of its own ([`Prompter::decide`]).
    ///
    /// # Errors
    /// As [`Prompter::request`].
    pub fn request_by(&self, prompt: impl Into<Prompt>, decided: &DecidedSampling) -> Result<Request, Error> {
        source::check(&self.target, false)?;
        let prompt = match prompt.into() {
            Prompt::Chat(messages) => return self.chat(&ChatInput::new(&messages, true), decided),
            Prompt::Ids(ids) => ids,
            Prompt::Text(text) => {
                self.check_bytes("prompt", text.len())?;
                text_tokens(&text, &self.target, self.tokenizer.as_deref())?
            }
        };
        let mut request = Request { prompt, ..self.base_request(decided) };
        self.constrain(&mut request, decided, None)?;
        Ok(request)
    }

    /// The requests for all [answers](SamplingSettings::n_best) to a prompt, with the generator's own settings: one
    /// each, or one for all of them if it is a beam search.
    ///
    /// # Errors
    /// As [`Prompter::request`].
    pub fn requests(&self, prompt: impl Into<Prompt>) -> Result<Vec<Request>, Error> {
        Ok(n_best(&self.request(prompt)?, self.decided.settings.n_best))
    }

    /// A request for the model's next turn in a conversation, with sampling parameters of its own. It ends at an
    /// end-of-turn token as well as at the end of the text, unless [end tokens are
    /// ignored](SamplingSettings::ignore_eos). If the model [thinks](Prompter::thinking) before it answers, its text
    /// shows the tags around the thinking, and a grammar applies to the text after them.
    ///
    /// # Errors
    /// The model has no tokenizer or no chat template, or the template cannot write the conversation out.
    pub fn chat(&self, input: &ChatInput, decided: &DecidedSampling) -> Result<Request, Error> {
        Ok(self.chat_after(input, decided, &Transcript::default())?.0)
    }

    /// As [`Prompter::chat`], continuing the transcript of an earlier turn. Also returns the transcript with this
    /// turn's prompt.
    pub(crate) fn chat_after(
        &self,
        input: &ChatInput,
        decided: &DecidedSampling,
        before: &Transcript,
    ) -> Result<(Request, Transcript), Error> {
        let Some(tokenizer) = self.tokenizer.as_deref() else {
            return Err(Error::input(self.target.missing_tokenizer()));
        };
        self.check_bytes("messages", input.text_bytes())?;
        let transcript = self.chat_template()?.encode_after(tokenizer, input, before, self.bytes_max());
        let transcript = transcript.map_err(|error| template_error(error, Error::Input))?;
        if transcript.tokens().is_empty() {
            let name = &self.target.name;
            return Err(Error::input(format!("{name}: chat template: expected text for a conversation, found none")));
        }
        let mut request = Request { prompt: transcript.tokens().to_vec(), ..self.base_request(decided) };
        if self.has_states {
            request.checkpoints.extend(self.chat_template()?.answer_start(input, &transcript));
        }
        if !decided.settings.ignore_eos {
            request.sampling.end_tokens.extend_from_slice(tokenizer.turn_end_tokens());
        }
        let thinking = self.thinking(input, &request.prompt).map(|(_, thinking)| thinking);
        self.constrain(&mut request, decided, thinking)?;
        Ok((request, transcript))
    }

    /// The tags around the model's thinking, and whether the answer to this conversation begins with thinking. `None`
    /// if the chat template has no such tags. `prompt`: the conversation's tokens.
    pub fn thinking(&self, input: &ChatInput, prompt: &[Token]) -> Option<(ThinkingTags, Thinking)> {
        /// How many of the last tokens are searched for a tag: more than a tag has.
        const TAIL: usize = 48;
        let (tokenizer, tags) = (self.tokenizer.as_deref()?, &self.thinking_tags()?.tags);
        let last = input.messages.last().and_then(|message| message.content());
        if let (true, Some(last)) = (input.continue_final_message, last.filter(|text| !text.trim().is_empty())) {
            return Some((*tags, tags.within(&last)));
        }
        let tail = tokenizer.decode(&prompt[prompt.len().saturating_sub(TAIL)..], false);
        let is_off = |(name, value): &(String, Json)| {
            matches!(name.as_str(), "enable_thinking" | "thinking") && *value == Json::from(false)
        };
        let thinking = match tags.at_end_of(&tail) {
            Thinking::Possible if input.variables.iter().any(is_off) => Thinking::Ended,
            found => found,
        };
        Some((*tags, thinking))
    }

    /// The tags around the model's thinking in the chat template.
    fn thinking_tags(&self) -> Option<&ModelThinking> {
        let found = self.thinking.get_or_init(|| {
            let tags = ThinkingTags::of_template(self.chat_template().ok()?)?;
            let special = self.tokenizer.as_ref().map(|tokenizer| tokenizer.special_tokens(&tags.shown()));
            Some(ModelThinking { tags, special: special.unwrap_or_default().into(), words: OnceLock::new() })
        });
        found.as_ref()
    }

    /// Refuses a text that is too long for the context, whatever its tokens are: tokenizing it would take about two
    /// hundred times its bytes of memory.
    fn check_bytes(&self, what: &str, bytes: usize) -> Result<(), Error> {
        let (longest, most) = (self.token_bytes_max(), self.bytes_max());
        if self.tokenizer.is_none() || bytes <= most {
            return Ok(());
        }
        let why = format!("the context is {} tokens, of at most {longest} bytes each", self.context);
        Err(Error::input(format!("{what}: expected at most {most} bytes ({why}), found {bytes}")))
    }

    /// Bytes of the longest token.
    fn token_bytes_max(&self) -> usize {
        self.tokenizer.as_ref().map_or(1, |tokenizer| tokenizer.token_bytes_max())
    }

    /// Bytes of the longest text that may fit into the context.
    fn bytes_max(&self) -> usize {
        self.context.saturating_mul(self.token_bytes_max())
    }

    /// The drafters of a request that names its method of drafting. `auto` is the generator's drafters that complement
    /// each other; if the request has a prediction (`has_prediction`), the prediction's drafter drafts first.
    ///
    /// # Errors
    /// The generator was opened without one of the drafters
    /// ([`Choices::for_requests`](crate::generator::Choices::for_requests)); the message names those that it has.
    pub fn method(&self, spec_type: &SpecType, has_prediction: bool) -> Result<Method, Error> {
        let number = |wanted: &(DrafterSpec, usize)| self.drafter_keys.iter().position(|key| key == wanted);
        let specs = match spec_type {
            SpecType::None => return Ok(Method::default()),
            SpecType::Auto => {
                let kinds = SpeculationSettings::auto_kinds(has_prediction);
                let found = kinds.filter_map(|kind| number(&(DrafterSpec::new(kind), 0)));
                let drafters: Vec<u8> = found.map(|number| number as u8).collect();
                let has_first = drafters.first().is_some_and(|first| self.is_prediction(*first));
                let order = if has_first { Order::LearnedBehindFirst } else { SpeculationSettings::order(spec_type) };
                return Ok(Method { drafters, order });
            }
            SpecType::Drafters(specs) => specs,
        };
        let keys = drafter_keys(specs);
        let Some(missing) = keys.iter().find(|key| number(key).is_none()) else {
            let drafters = keys.iter().filter_map(number).map(|number| number as u8).collect();
            return Ok(Method { drafters, order: SpeculationSettings::order(spec_type) });
        };
        let names = if self.names.is_empty() { "none".to_string() } else { self.names.join(", ") };
        let (spec, first) = missing;
        let words = format!(" {spec_type}: expected drafters that are there ({names}), found {spec}");
        // A drafter of the same specification may exist for another draft model.
        let which = match number(&(spec.clone(), 0)) {
            Some(_) => format!(" of draft model {}", first + 1),
            None => String::new(),
        };
        Err(Error::setting("spec_type", words + &which))
    }

    /// Whether the drafter of this number drafts from the request's prediction.
    pub fn is_prediction(&self, number: u8) -> bool {
        self.drafter_keys.get(usize::from(number)).is_some_and(|(spec, _)| spec.kind == DrafterKind::Prediction)
    }

    /// A request with the first method, still without its prompt and grammar.
    pub(crate) fn base_request(&self, decided: &DecidedSampling) -> Request {
        let Method { drafters, order } = self.methods.first().cloned().unwrap_or_default();
        let (settings, drafting) = (&decided.settings, &self.drafting);
        Request {
            tokens_max: settings.tokens_max.0,
            sampling: decided.sampling.clone(),
            beams: settings.beam_search(),
            seed: settings.seed.unwrap_or_default(),
            promise: drafting.promise,
            lossy_lenience: drafting.lossy_lenience,
            budget: drafting.budget.clone(),
            drafters,
            order,
            draft: drafting.settings,
            tokenizer: self.tokenizer.clone(),
            stop: settings.stop.clone(),
            special: settings.special,
            ..Request::new(Vec::new())
        }
    }

    /// The chat template of the settings, else the target's; it is read when it is first needed.
    ///
    /// # Errors
    /// There is none, or it is empty or cannot be parsed.
    pub fn chat_template(&self) -> Result<&ChatTemplate, Error> {
        if self.has_encoder() {
            return Err(self.no_turns());
        }
        let template = self.template.get_or_init(|| match &self.template_setting {
            Some(words) => self.template_for(words).map(Some),
            None => self.target.chat_template(),
        });
        let found = match template.as_ref().map_err(Clone::clone)? {
            Some(template) if !template.source().trim().is_empty() => return Ok(template),
            Some(_) => "an empty one",
            None => "none",
        };
        let expected =
            Message::words(format!("{}: chat template: expected one to chat with, found ", self.target.name));
        let without = Message::words(format!("{found}; ")).and_setting("chat_template");
        Err(Error::Input(expected.followed_by(without).and(" sets one; completing a text needs none")))
    }

    /// Constrains a request by its grammar, if there is one. If the answer may think, its text shows the tags of
    /// thinking, and the grammar applies to the text after them. Call it once the request has its end tokens.
    fn constrain(
        &self,
        request: &mut Request,
        decided: &DecidedSampling,
        thinking: Option<Thinking>,
    ) -> Result<(), Error> {
        let thinking = thinking.and_then(|thinking| Some((thinking, self.thinking_tags()?)));
        if let Some((_, model)) = thinking {
            request.shown_special = Arc::clone(&model.special);
        }
        let (Some(grammar), Some(tokenizer)) = (&decided.grammar, &self.tokenizer) else { return Ok(()) };
        let (ends, forcing) = (&request.sampling.end_tokens, self.forcing(decided));
        check_ends(grammar, tokenizer, ends)?;
        request.constraint = Some(match thinking {
            None => guided(grammar, ends, forcing),
            Some((thinking, model)) => {
                let words = model.words.get_or_init(|| Arc::new(ThinkingWords::new(tokenizer, model.tags)));
                guided_after_thoughts(grammar, ends, forcing, words, thinking)
            }
        });
        Ok(())
    }

    /// The tokenization of strings that the grammar forces.
    fn forcing(&self, decided: &DecidedSampling) -> Forcing {
        let create = || self.tokenizer.clone().map(|tokenizer| Arc::new(Spelling::new(tokenizer)));
        let forcing = match decided.settings.guided.grammar_forcing {
            GrammarForcing::Off => Forcing::Foreseen,
            GrammarForcing::Canonical => Forcing::Canonical,
        };
        self.spelling.get_or_init(create).clone().map_or(Forcing::None, forcing)
    }

    /// The template for this value of the setting, with the special tokens of the target's own template.
    fn template_for(&self, words: &str) -> Result<ChatTemplate, Error> {
        let unusable = |error| template_error(error, Error::Setting);
        // `chat_template` reports an empty template.
        let empty = words.trim().is_empty().then_some(words);
        let Some(source) = ChatTemplate::source_for(words).or(empty) else {
            let names = ChatTemplate::names().collect::<Vec<_>>().join(", ");
            let expected = format!(": expected a file, a Jinja template or one of {names}, found {words:?}");
            return Err(Error::setting(TEMPLATE_SETTING, expected));
        };
        if let Ok(Some(own)) = self.target.chat_template() {
            return own.with_source(TEMPLATE_SETTING, source).map_err(unusable);
        }
        let tokenizer = self.tokenizer.as_deref();
        let text_of = |token: Option<Token>| {
            let bytes = tokenizer.zip(token).map(|(tokenizer, token)| tokenizer.token_bytes(token));
            bytes.map_or(String::new(), |bytes| String::from_utf8_lossy(bytes).into_owned())
        };
        let ends = tokenizer.map_or(&[][..], Tokenizer::end_tokens);
        let marks = [self.target.beginning(tokenizer), ends.first().copied()].map(text_of);
        ChatTemplate::from_source(TEMPLATE_SETTING, source, &marks[0], &marks[1]).map_err(unusable)
    }
}

/// The setting that names a template; errors of that template name this setting instead of a file.
const TEMPLATE_SETTING: &str = "chat_template";

/// The error of a template, which names the setting if the template is the setting's.
fn template_error(error: TextError, kind: impl FnOnce(Message) -> Error) -> Error {
    match &error {
        TextError::Template { place, found } if place == TEMPLATE_SETTING => {
            kind(Message::setting(TEMPLATE_SETTING).and(format!(": {found}")))
        }
        _ => error.into(),
    }
}

/// The keys of a method's drafters, in its order: each specification with the number of its first draft model. Draft
/// models are numbered across the method's drafters; a drafter without one has number 0.
pub(crate) fn drafter_keys(specs: &[DrafterSpec]) -> Vec<(DrafterSpec, usize)> {
    let mut first = 0;
    let key = |spec: &DrafterSpec| {
        let key = (spec.clone(), if spec.models() > 0 { first } else { 0 });
        first += spec.models();
        key
    };
    specs.iter().map(key).collect()
}

/// A prompter is shared between threads.
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<Prompter>();
};

#[cfg(all(test, feature = "demo"))]
mod tests {
    use foretoken_text::Message as ChatMessage;

    use super::*;
    use crate::{Generator, Settings};

    #[test]
    fn thinking_words_are_computed_once_for_all_requests() {
        let mut settings = Settings::default();
        settings.model.chat_template = Some("{# </think> #}{{ messages[0].content }}".to_string());
        let prompter = Arc::clone(&Generator::open(&settings).expect("the demo model opens").prompter);
        settings.sampling.guided.choices = vec!["yes".to_string()];
        let decided = prompter.decide(&settings.sampling).expect("the grammar is valid");
        let messages = [ChatMessage::new("user", "why?")];
        let words = || {
            let request = prompter.chat(&ChatInput::new(&messages, true), &decided).expect("the request is valid");
            assert!(request.constraint.is_some());
            Arc::as_ptr(prompter.thinking_tags().and_then(|found| found.words.get()).expect("the words are computed"))
        };
        assert_eq!(words(), words());
    }

    #[test]
    fn a_checkpoint_is_requested_before_an_answer_where_there_are_states() {
        let mut generator = Generator::open(&Settings::default()).expect("the demo model opens");
        let prompt = || Prompt::Chat(vec![ChatMessage::new("user", "why?")]);
        let plain = generator.request(prompt()).expect("the request is valid");
        assert_eq!(plain.checkpoints, [0; 0], "attention needs no checkpoints");
        Arc::get_mut(&mut generator.prompter).expect("no other thread has the prompter").has_states = true;
        let request = generator.request(prompt()).expect("the request is valid");
        let [start] = request.checkpoints[..] else { panic!("expected one checkpoint: {:?}", request.checkpoints) };
        assert!(0 < start && start < request.prompt.len(), "{start} of {}", request.prompt.len());
        assert_eq!(request.prompt, plain.prompt);
    }
}
