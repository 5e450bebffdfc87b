//! Whose messages there are.

use super::inputs::Inputs;
use crate::gguf::shown;
use crate::{Error, Result};

/// The roles of OpenAI's API, and Llama's for the results of tools.
const ROLES: [&str; 7] = ["system", "developer", "user", "assistant", "tool", "function", "ipython"];

/// Fails where a message has no role, or one that neither APIs nor the template know; most templates would render it
/// as it is, or drop its message.
pub(super) fn check(inputs: &Inputs, template_names: &dyn Fn(&str) -> bool) -> Result<()> {
    let problem = |n: usize, what: String| Err(Error::InvalidArgument(format!("chat inputs: messages[{n}] {what}")));
    let messages = inputs.get("messages").and_then(|messages| messages.try_iter().ok());
    for (n, message) in messages.into_iter().flatten().enumerate() {
        let role = message.get_attr("role").unwrap_or_default();
        match role.as_str() {
            None if role.is_undefined() => return problem(n, "has no `role`".into()),
            None => return problem(n, format!("has a `role` that is {}, must be a text", role.kind())),
            Some(role) if ROLES.contains(&role) || template_names(role) => {}
            Some(role) => {
                let what = format!(
                    "has the role \"{}\", which the template does not name; known are {}",
                    shown(role),
                    ROLES.join(", ")
                );
                return problem(n, what);
            }
        }
    }
    Ok(())
}
