//! What models for rows of whole texts, and not for the next token, have in place of an output matrix.

use super::pooling::Pooling;
use crate::Result;
use crate::graph::{Activation, Builder, Function, Linear, NodeId, NormSpec};

/// What a model that is made for rows of whole texts has in place of an output matrix.
#[derive(Debug, Clone, PartialEq)]
pub struct Pooled {
    /// The pooling that the file names.
    pub pooling: Pooling,
    /// What follows.
    pub then: Then,
    /// Numbers in a result of what follows.
    pub width: usize,
}

/// What follows the pooling.
#[derive(Debug, Clone, PartialEq)]
pub enum Then {
    /// Nothing.
    Nothing,
    /// Products, one after the other, whatever the pooling.
    Products(Vec<Linear>),
    /// With [`Pooling::Rank`] a classifier.
    Classifier(Box<Classifier>),
}

/// From one row of a text to a score for each label.
#[derive(Debug, Clone, PartialEq)]
pub struct Classifier {
    /// How the one row is made.
    pub row: Pooling,
    /// A layer before the scores: without a norm after it with tanh, else with GELU.
    pub hidden: Option<(Linear, Option<NormSpec>)>,
    /// The matrix of the scores.
    pub output: Option<Linear>,
    /// Whether the scores are made probabilities.
    pub softmax: bool,
}

impl Pooled {
    /// From pooled rows to results.
    pub(super) fn emit(&self, b: &mut Builder<'_>, mut x: NodeId) -> Result<NodeId> {
        match &self.then {
            Then::Nothing => {}
            Then::Products(products) => {
                for &product in products {
                    x = b.matmul(x, &[product], None)?;
                }
            }
            Then::Classifier(classifier) => {
                x = match classifier.hidden {
                    None => x,
                    Some((linear, None)) => {
                        let made = b.matmul(x, &[linear], None)?;
                        b.map(made, Function::SoftCap(1.0))?
                    }
                    Some((linear, Some(norm))) => {
                        let made = b.gated_matmul(x, linear, None, Activation::Gelu)?;
                        b.norm(made, norm, None)?
                    }
                };
                if let Some(output) = classifier.output {
                    x = b.matmul(x, &[output], None)?;
                }
            }
        }
        Ok(x)
    }
}
