//! Where spans begin and end in a text that is being generated.

use crate::grammar::span_plan::SpanPlan;
use crate::grammar::state::GrammarState;

/// One span of a generated text, or what is known of it so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct SpanEvent {
    /// The span's number.
    pub span: u32,
    /// The span that this one is a part of, by its index among the events.
    pub parent: Option<u32>,
    /// Where it begins, in bytes of the generated text.
    pub begin: usize,
    /// Where it ends; `None` while it is open.
    pub end: Option<usize>,
}

/// Notes the spans of one stream, a token at a time.
#[derive(Debug, Default)]
pub struct SpanTracker {
    events: Vec<SpanEvent>,
    /// The open events and their spans, the outermost first.
    open: Vec<(u32, u32)>,
    /// Bytes of the text so far.
    length: usize,
}

impl SpanTracker {
    /// Forgets everything: a new text begins.
    pub fn restart(&mut self) {
        self.events.clear();
        self.open.clear();
        self.length = 0;
    }

    /// The spans in the order in which they began.
    pub fn events(&self) -> &[SpanEvent] {
        &self.events
    }

    /// Notes the bytes of a token. `state` is what the grammar was in before it, and is left advanced.
    pub fn token(&mut self, plan: &SpanPlan, state: &mut GrammarState, bytes: &[u8]) {
        let start = self.length;
        for (index, &byte) in bytes.iter().enumerate() {
            let span = state.span_of(byte);
            let fits = state.advance_bytes(&[byte], &mut |_, _| {}) == 1;
            self.enter(plan, span.filter(|_| fits), start + index);
        }
        self.length = start + bytes.len();
    }

    /// Ends what is open.
    pub fn finish(&mut self, plan: &SpanPlan) {
        self.enter(plan, None, self.length);
    }

    /// The byte at `at` belongs to `span`: closes and opens what that takes.
    fn enter(&mut self, plan: &SpanPlan, span: Option<u32>, at: usize) {
        if self.open.last().map(|&(_, span)| span) == span {
            return;
        }
        let parent = |span: u32| plan.spans().get(span as usize).and_then(|info| info.parent);
        // Closes all that the span is not a part of.
        while let Some(&(event, open)) = self.open.last() {
            if std::iter::successors(span, |&span| parent(span)).any(|outer| outer == open) {
                break;
            }
            if let Some(event) = self.events.get_mut(event as usize) {
                event.end = Some(at);
            }
            self.open.pop();
        }
        let innermost = self.open.last().map(|&(_, span)| span);
        let mut new = Vec::new();
        let mut outer = span;
        while let Some(span) = outer.filter(|&span| Some(span) != innermost) {
            new.push(span);
            outer = parent(span);
        }
        for span in new.into_iter().rev() {
            let parent = self.open.last().map(|&(event, _)| event);
            self.open.push((self.events.len() as u32, span));
            self.events.push(SpanEvent { span, parent, begin: at, end: None });
        }
    }
}
