//! Activation functions in shader texts, see `shaders/ops/activate.wgsl`.

use crate::graph::Activation;

/// The flags that choose an activation.
pub fn activation_flags(act: Activation) -> Vec<&'static str> {
    match act {
        Activation::Identity => vec!["IDENTITY"],
        Activation::Silu => vec!["TIMES_SIGMOID"],
        Activation::Gelu => vec!["TIMES_SIGMOID", "GELU"],
        Activation::Relu => vec!["RELU"],
        Activation::Relu2 => vec!["RELU2"],
        Activation::Sigmoid => vec!["SIGMOID"],
        Activation::Xielu { .. } => vec!["XIELU"],
        Activation::ClampedSwiglu => vec!["CLAMPED"],
    }
}

/// The numbers of an activation, `curve` of a kernel's parameters.
pub fn curve(act: Activation) -> [f32; 4] {
    match act {
        Activation::Xielu { positive, negative, linear, eps } => [positive, negative, linear, eps],
        _ => [0.0; 4],
    }
}
