//! What every request has in common and no engine is needed for: from prompts and settings to requests.
//!
//! The idea: the engine belongs to one thread, and users to others. A [`Prompter`] is shared between all of them
//! (`Arc`): it holds the target's files, its tokenizer and chat template, and the generator's settings as they were
//! decided, all of them fixed once the generator is open. So prompts become tokens, and settings become requests,
//! beside a running [`EngineThread`](crate::EngineThread). Left out: running requests.

use std::sync::{Arc, OnceLock};

use foretoken_engine::{BudgetKind, Forcing, Order, Request, ThinkingWords, guided, guided_behind};
use foretoken_speculation::{DraftSettings, Promise, Token};
use foretoken_text::{
    ChatInput, ChatTemplate, Json, Spelling, TextError, Thinking, ThinkingMarks, Tokenizer, Transcript,
};

use crate::error::Message;
use crate::models::Opened;
use crate::prompts::{Prompt, text_tokens};
use crate::settings::{DecidedSampling, GrammarForcing, SamplingSettings, SpeculationSettings, check_ends};
use crate::spec_type::{DrafterKind, DrafterSpec, SpecType};
use crate::{Error, n_best};

/// Makes requests for a generator, on any thread.
pub struct Prompter {
    /// The target's files.
    pub target: Opened,
    /// The target's tokenizer, if it has one.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// The law of the generator's own settings, and who decided it.
    pub decided: DecidedSampling,
    /// Names of the drafters, by number: each is another.
    pub names: Vec<String>,
    /// The drafters of each way of drafting that the generator was made for, at least one way.
    pub methods: Vec<Method>,
    /// Tokens that a text can have, prompt included.
    pub context: usize,
    /// Whether the target has recurrent states, which are kept where prompts are likely to part.
    pub(crate) has_states: bool,
    /// What the drafters are, by number: a specification with the number of its first draft model.
    pub(crate) made: Vec<(DrafterSpec, usize)>,
    pub(crate) drafting: Drafting,
    /// The chat template that is used instead of the target's.
    pub(crate) template_asked: Option<String>,
    pub(crate) template: OnceLock<Result<Option<ChatTemplate>, Error>>,
    /// How the target's vocabulary spells what a form foresees, made for the first request that has one.
    pub(crate) spelling: OnceLock<Option<Arc<Spelling>>>,
    /// The marks around what the model thinks, if it does.
    pub(crate) thinking: OnceLock<Option<MarksOfModel>>,
}

/// The marks around what a model thinks.
pub(crate) struct MarksOfModel {
    marks: ThinkingMarks,
    /// Those of them that are special tokens.
    shown: Arc<[Token]>,
    /// The vocabulary beside them, made for the first request that may think and has a form.
    words: OnceLock<Arc<ThinkingWords>>,
}

/// The drafters of one way of drafting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Method {
    /// Their numbers.
    pub drafters: Vec<u8>,
    /// The order in which they are asked.
    pub order: Order,
}

/// What requests say about drafting, besides who drafts.
#[derive(Clone, Debug)]
pub(crate) struct Drafting {
    pub(crate) promise: Promise,
    pub(crate) budget: BudgetKind,
    pub(crate) settings: DraftSettings,
}

impl Prompter {
    /// Tokens that can be read and written ([`Opened::tokens`]).
    pub fn tokens(&self) -> usize {
        self.target.tokens(self.tokenizer.as_deref())
    }

    /// Decides the law of one request: these settings, then the model's own files, then the program's defaults. The
    /// generator's own settings are no part of it: a door that lets users change some of these begins with a copy of
    /// them. A seed that is open is drawn.
    ///
    /// # Errors
    /// A value out of its range, or stop strings for a model without a tokenizer.
    pub fn decide(&self, settings: &SamplingSettings) -> Result<DecidedSampling, Error> {
        settings.decided(&self.target, self.tokenizer.as_deref())
    }

    /// A request that goes on with a prompt, by the generator's own settings and its first method.
    ///
    /// Its fields can be changed before it is submitted: on whose behalf it is, what is expected to be written, what is
    /// promised, who drafts and how much.
    ///
    /// # Errors
    /// A text for a model without a tokenizer, or an empty one for a model without a beginning-of-text token.
    pub fn request(&self, prompt: impl Into<Prompt>) -> Result<Request, Error> {
        self.request_by(prompt, &self.decided)
    }

    /// The same, by settings of its own ([`Prompter::decide`]).
    ///
    /// # Errors
    /// As [`Prompter::request`].
    pub fn request_by(&self, prompt: impl Into<Prompt>, decided: &DecidedSampling) -> Result<Request, Error> {
        let prompt = match prompt.into() {
            Prompt::Chat(messages) => return self.chat(&ChatInput::new(&messages, true), decided),
            Prompt::Ids(ids) => ids,
            Prompt::Text(text) => {
                self.check_bytes("prompt", text.len())?;
                text_tokens(&text, &self.target, self.tokenizer.as_deref())?
            }
        };
        let mut request = Request { prompt, ..self.base(decided) };
        self.constrain(&mut request, decided, None)?;
        Ok(request)
    }

    /// The requests for all [answers](SamplingSettings::n_best) to a prompt, by the generator's own settings.
    ///
    /// # Errors
    /// As [`Prompter::request`].
    pub fn requests(&self, prompt: impl Into<Prompt>) -> Result<Vec<Request>, Error> {
        Ok(n_best(&self.request(prompt)?, self.decided.settings.n_best))
    }

    /// A request for the model's next turn in a conversation, by settings of its own. It ends with the turn as well as
    /// with the text, unless [end tokens are ignored](SamplingSettings::ignore_eos). Where the model
    /// [thinks](Prompter::thinking) before it answers, its text shows the marks around that, and a form that the text
    /// has to have begins behind it.
    ///
    /// # Errors
    /// The model has no tokenizer or no chat template, or the template cannot write the conversation out.
    pub fn chat(&self, input: &ChatInput, decided: &DecidedSampling) -> Result<Request, Error> {
        Ok(self.chat_behind(input, decided, &Transcript::default())?.0)
    }

    /// The same, going on from what was computed for an earlier turn; and the request's prompt with its text.
    pub(crate) fn chat_behind(
        &self,
        input: &ChatInput,
        decided: &DecidedSampling,
        before: &Transcript,
    ) -> Result<(Request, Transcript), Error> {
        let Some(tokenizer) = self.tokenizer.as_deref() else {
            return Err(Error::input(self.target.missing_tokenizer()));
        };
        self.check_bytes("messages", input.text_bytes())?;
        let transcript = self.chat_template()?.encode_behind(tokenizer, input, before, self.bytes_max());
        let transcript = transcript.map_err(|error| of_template(error, Error::Input))?;
        if transcript.tokens().is_empty() {
            let name = &self.target.name;
            return Err(Error::input(format!("{name}: chat template: expected text for a conversation, found none")));
        }
        let mut request = Request { prompt: transcript.tokens().to_vec(), ..self.base(decided) };
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

    /// The marks around what the model thinks before it answers, and what an answer to this conversation begins with,
    /// whose prompt is given; `None` if the chat template knows no such marks.
    pub fn thinking(&self, input: &ChatInput, prompt: &[Token]) -> Option<(ThinkingMarks, Thinking)> {
        /// More tokens than a mark has.
        const TAIL: usize = 48;
        let (tokenizer, marks) = (self.tokenizer.as_deref()?, &self.thinking_marks()?.marks);
        let said = input.messages.last().and_then(|message| message.content());
        if let (true, Some(said)) = (input.continue_final_message, said.filter(|said| !said.trim().is_empty())) {
            return Some((*marks, marks.within(&said)));
        }
        let tail = tokenizer.decode(&prompt[prompt.len().saturating_sub(TAIL)..], false);
        let is_off = |(name, value): &(String, Json)| {
            matches!(name.as_str(), "enable_thinking" | "thinking") && *value == Json::from(false)
        };
        Some((
            *marks,
            match marks.at_end_of(&tail) {
                Thinking::Possible if input.variables.iter().any(is_off) => Thinking::Ended,
                found => found,
            },
        ))
    }

    /// The marks of the chat template.
    fn thinking_marks(&self) -> Option<&MarksOfModel> {
        let found = self.thinking.get_or_init(|| {
            let marks = ThinkingMarks::of_template(self.chat_template().ok()?)?;
            let special = self.tokenizer.as_ref().map(|tokenizer| tokenizer.special_tokens(&marks.shown()));
            Some(MarksOfModel { marks, shown: special.unwrap_or_default().into(), words: OnceLock::new() })
        });
        found.as_ref()
    }

    /// Refuses a text of so many bytes that cannot fit whatever its tokens are: finding them would take some two
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

    /// The drafters of a request that names its way of drafting itself, of those that the generator was opened with
    /// ([`Choices::for_requests`](crate::generator::Choices::for_requests)). `auto` is what goes well together of what
    /// is there; `has_prediction`: the request says what will probably be written, which `auto` then follows first.
    ///
    /// # Errors
    /// A drafter that the generator does not have; the message names those that it has.
    pub fn method(&self, spec_type: &SpecType, has_prediction: bool) -> Result<Method, Error> {
        let number = |wanted: &(DrafterSpec, usize)| self.made.iter().position(|made| made == wanted);
        let specs = match spec_type {
            SpecType::None => return Ok(Method::default()),
            SpecType::Auto => {
                let kinds = SpeculationSettings::auto_kinds(has_prediction);
                let found = kinds.filter_map(|kind| number(&(DrafterSpec::new(kind), 0)));
                let drafters: Vec<u8> = found.map(|number| number as u8).collect();
                let follows = drafters.first().is_some_and(|first| self.is_prediction(*first));
                let order = if follows { Order::LearnedBehindFirst } else { SpeculationSettings::order(spec_type) };
                return Ok(Method { drafters, order });
            }
            SpecType::Drafters(specs) => specs,
        };
        let keys = made_keys(specs);
        let Some(missing) = keys.iter().find(|key| number(key).is_none()) else {
            let drafters = keys.iter().filter_map(number).map(|number| number as u8).collect();
            return Ok(Method { drafters, order: SpeculationSettings::order(spec_type) });
        };
        let names = if self.names.is_empty() { "none".to_string() } else { self.names.join(", ") };
        let there = format!(" {spec_type}: expected drafters that are there ({names}), found {}", missing.0);
        // Two draft models may have the same specification.
        let which = match missing.1 {
            first if number(&(missing.0.clone(), 0)).is_some() => format!(" of draft model {}", first + 1),
            _ => String::new(),
        };
        Err(Error::Setting(Message::setting("spec_type").and(there + &which)))
    }

    /// Whether the drafter of this number follows predictions.
    pub fn is_prediction(&self, number: u8) -> bool {
        self.made.get(usize::from(number)).is_some_and(|(spec, _)| spec.kind == DrafterKind::Prediction)
    }

    /// A request without a prompt and without its form, by the first method.
    pub(crate) fn base(&self, decided: &DecidedSampling) -> Request {
        let Method { drafters, order } = self.methods.first().cloned().unwrap_or_default();
        let (settings, drafting) = (&decided.settings, &self.drafting);
        Request {
            tokens_max: settings.tokens_max.0,
            sampling: decided.sampling.clone(),
            seed: settings.seed.unwrap_or_default(),
            promise: drafting.promise,
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

    /// The chat template that was asked for, or the target's, which is read when it is first asked for.
    ///
    /// # Errors
    /// There is none, or one that is empty or cannot be understood.
    pub fn chat_template(&self) -> Result<&ChatTemplate, Error> {
        let template = self.template.get_or_init(|| match &self.template_asked {
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
        Err(Error::Input(expected.followed_by(without).and(" gives one, and a text goes on without one")))
    }

    /// Holds a request to the form that its text has to have, if any, and shows the marks of thinking if it may think:
    /// its form is then that of what comes behind. Called once, when it is known which tokens end the text.
    fn constrain(
        &self,
        request: &mut Request,
        decided: &DecidedSampling,
        thinking: Option<Thinking>,
    ) -> Result<(), Error> {
        let known = thinking.and_then(|thinking| Some((thinking, self.thinking_marks()?)));
        if let Some((_, known)) = known {
            request.shown_special = Arc::clone(&known.shown);
        }
        let (Some(grammar), Some(tokenizer)) = (&decided.grammar, &self.tokenizer) else { return Ok(()) };
        let (ends, forcing) = (&request.sampling.end_tokens, self.forcing(decided));
        check_ends(grammar, tokenizer, ends)?;
        request.constraint = Some(match known {
            None => guided(grammar, ends, forcing),
            Some((thinking, known)) => {
                let words = known.words.get_or_init(|| Arc::new(ThinkingWords::new(tokenizer, known.marks)));
                guided_behind(grammar, ends, forcing, words, thinking)
            }
        });
        Ok(())
    }

    /// What becomes of strings that a form leaves no choice about.
    fn forcing(&self, decided: &DecidedSampling) -> Forcing {
        let make = || self.tokenizer.clone().map(|tokenizer| Arc::new(Spelling::new(tokenizer)));
        let forcing = match decided.settings.guided.grammar_forcing {
            GrammarForcing::Off => Forcing::Foreseen,
            GrammarForcing::Canonical => Forcing::Canonical,
        };
        self.spelling.get_or_init(make).clone().map_or(Forcing::None, forcing)
    }

    /// The template for these words of the settings. It sees the special tokens that the target's own would see.
    fn template_for(&self, words: &str) -> Result<ChatTemplate, Error> {
        let unusable = |error| of_template(error, Error::Setting);
        // An empty file is a template too, about which there is another complaint.
        let empty = words.trim().is_empty().then_some(words);
        let Some(source) = ChatTemplate::source_for(words).or(empty) else {
            let names = ChatTemplate::names().collect::<Vec<_>>().join(", ");
            let expected = format!(": expected a file, a Jinja template or one of {names}, found {words:?}");
            return Err(Error::Setting(Message::setting(ASKED).and(expected)));
        };
        if let Ok(Some(own)) = self.target.chat_template() {
            return own.with_source(ASKED, source).map_err(unusable);
        }
        let tokenizer = self.tokenizer.as_deref();
        let spelt = |token: Option<Token>| {
            let bytes = tokenizer.zip(token).map(|(tokenizer, token)| tokenizer.token_bytes(token));
            bytes.map_or(String::new(), |bytes| String::from_utf8_lossy(bytes).into_owned())
        };
        let ends = tokenizer.map_or(&[][..], Tokenizer::end_tokens);
        let marks = [self.target.beginning(tokenizer), ends.first().copied()].map(spelt);
        ChatTemplate::from_source(ASKED, source, &marks[0], &marks[1]).map_err(unusable)
    }
}

/// The setting that asks for a template, which then has its name where others have their file's.
const ASKED: &str = "chat_template";

/// What is wrong with a template that was asked for is said of the setting.
fn of_template(error: TextError, kind: impl FnOnce(Message) -> Error) -> Error {
    match &error {
        TextError::Template { place, found } if place == ASKED => {
            kind(Message::setting(ASKED).and(format!(": {found}")))
        }
        _ => error.into(),
    }
}

/// What the drafters of a method are made as, in its order: each with the number of its first draft model. Models are
/// counted on from drafter to drafter; a drafter without one is the same at any place.
pub(crate) fn made_keys(specs: &[DrafterSpec]) -> Vec<(DrafterSpec, usize)> {
    let mut first = 0;
    let key = |spec: &DrafterSpec| {
        let key = (spec.clone(), if spec.models() > 0 { first } else { 0 });
        first += spec.models();
        key
    };
    specs.iter().map(key).collect()
}

/// It is of use only where every thread can have it.
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
    fn a_vocabulary_is_looked_through_once_for_all_texts_that_think() {
        let mut settings = Settings::default();
        settings.model.chat_template = Some("{# </think> #}{{ messages[0].content }}".to_string());
        let prompter = Arc::clone(&Generator::open(&settings).expect("the demo model opens").prompter);
        settings.sampling.guided.choices = vec!["yes".to_string()];
        let decided = prompter.decide(&settings.sampling).expect("a good form");
        let messages = [ChatMessage::new("user", "why?")];
        let words = || {
            let request = prompter.chat(&ChatInput::new(&messages, true), &decided).expect("it can be asked");
            assert!(request.constraint.is_some());
            Arc::as_ptr(prompter.thinking_marks().and_then(|known| known.words.get()).expect("they were made"))
        };
        assert_eq!(words(), words());
    }

    #[test]
    fn states_are_kept_before_an_answer_where_there_are_any() {
        let mut generator = Generator::open(&Settings::default()).expect("the demo model opens");
        let prompt = || Prompt::Chat(vec![ChatMessage::new("user", "why?")]);
        let plain = generator.request(prompt()).expect("it can be asked");
        assert_eq!(plain.checkpoints, [0; 0], "of attention nothing has to be kept");
        Arc::get_mut(&mut generator.prompter).expect("nobody else has it").has_states = true;
        let request = generator.request(prompt()).expect("it can be asked");
        let [start] = request.checkpoints[..] else { panic!("one place: {:?}", request.checkpoints) };
        assert!(0 < start && start < request.prompt.len(), "{start} of {}", request.prompt.len());
        assert_eq!(request.prompt, plain.prompt);
    }
}
