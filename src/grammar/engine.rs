//! The engines that grammars are compiled for, and the matchers that follow them.

#[cfg(feature = "llguidance")]
use super::lark::{CompiledLark, LarkMatcher};
use super::matcher::Matcher;
use super::rule_matcher::{CompiledRules, RuleMatcher};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A compiled grammar.
pub(super) enum Engine {
    /// Rules, of whatever they were made.
    Rules(Arc<CompiledRules>),
    /// Lark.
    #[cfg(feature = "llguidance")]
    Lark(Arc<CompiledLark>),
}

impl Engine {
    /// A matcher at the start of the grammar.
    pub(super) fn start(&self) -> AnyMatcher {
        match self {
            Engine::Rules(rules) => AnyMatcher::Rules(RuleMatcher::new(rules.clone())),
            #[cfg(feature = "llguidance")]
            Engine::Lark(lark) => AnyMatcher::Lark(Box::new(LarkMatcher::new(lark.clone()))),
        }
    }

    /// Whether the grammar refers to whole tokens.
    pub(super) fn has_tokens(&self) -> bool {
        match self {
            Engine::Rules(rules) => rules.has_tokens,
            #[cfg(feature = "llguidance")]
            Engine::Lark(lark) => lark.has_tokens,
        }
    }

    /// Bytes of memory that it takes now, the vocabulary's trie left out.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Engine::Rules(rules) => rules.bytes(),
            #[cfg(feature = "llguidance")]
            Engine::Lark(lark) => lark.bytes(),
        }
    }

    /// How many states are known, and how many masks were computed.
    pub(super) fn states_and_masks(&self) -> (u64, u64) {
        match self {
            Engine::Rules(rules) => {
                let tables = rules.tables();
                (tables.n_states() as u64, tables.masks)
            }
            #[cfg(feature = "llguidance")]
            Engine::Lark(lark) => (lark.states(), lark.masks()),
        }
    }

    /// How often its tables were full and dropped.
    pub(super) fn rebuilt(&self) -> u64 {
        match self {
            Engine::Rules(rules) => rules.tables().rebuilt,
            #[cfg(feature = "llguidance")]
            Engine::Lark(_) => 0,
        }
    }
}

/// A matcher of either engine. A clone is at the same place.
#[derive(Clone)]
pub(super) enum AnyMatcher {
    Rules(RuleMatcher),
    #[cfg(feature = "llguidance")]
    Lark(Box<LarkMatcher>),
}

impl Deref for AnyMatcher {
    type Target = dyn Matcher;

    fn deref(&self) -> &(dyn Matcher + 'static) {
        match self {
            AnyMatcher::Rules(matcher) => matcher,
            #[cfg(feature = "llguidance")]
            AnyMatcher::Lark(matcher) => &**matcher,
        }
    }
}

impl DerefMut for AnyMatcher {
    fn deref_mut(&mut self) -> &mut (dyn Matcher + 'static) {
        match self {
            AnyMatcher::Rules(matcher) => matcher,
            #[cfg(feature = "llguidance")]
            AnyMatcher::Lark(matcher) => &mut **matcher,
        }
    }
}
