//! Objects: required properties in order, then optional ones in order, then others.

use super::emit::Emitter;
use super::names;
use super::shape::{Object, Others};
use crate::Result;
use crate::grammar::draft::Expr;

impl<'j> Emitter<'j> {
    pub(super) fn members(&mut self, object: Object<'j>, hint: &str) -> Result<Expr> {
        let space = self.space()?;
        let comma = Expr::Seq(vec![Expr::text(","), space.clone()]);
        let (mut required, mut optional) = (Vec::new(), Vec::new());
        for property in &object.properties {
            let value = self.child(&property.value)?;
            let member = self.member(property.name, value)?;
            let member = self.draft.rule(&format!("{hint}-{}-kv", property.name), member)?;
            if property.required { required.push(member) } else { optional.push(member) }
        }
        let names: Vec<&str> = object.properties.iter().map(|property| property.name).collect();
        let other = object.others.map(|others| self.other(others, &names, hint)).transpose()?;
        let mut parts = vec![Expr::text("{"), space.clone()];
        let count = required.len() as u64;
        let is_map = required.is_empty() && optional.is_empty();
        for (index, member) in required.into_iter().enumerate() {
            if index > 0 {
                parts.push(comma.clone());
            }
            parts.push(member);
        }
        let bounds = (object.min, object.max);
        match other {
            Some(other) if is_map && bounds != (0, None) => parts.push(self.counted(other, &comma, bounds)?),
            other => {
                let some = self.optional(optional, other, &comma, hint)?;
                if let Some(some) = some {
                    let some = if count > 0 { Expr::Seq(vec![comma, some]) } else { some };
                    parts.push(if object.min > count { some } else { some.optional() });
                } else if object.min > count {
                    return Ok(Expr::never());
                }
            }
        }
        parts.extend([space, Expr::text("}")]);
        Ok(Expr::Seq(parts))
    }

    /// A member whose name is none of the listed ones.
    fn other(&mut self, others: Others<'j>, listed: &[&str], hint: &str) -> Result<Expr> {
        let name = match others.names {
            Some(shapes) => self.shapes(shapes, &format!("{hint}-name"))?,
            None => names::others(self, listed)?,
        };
        let value = self.child(&others.value)?;
        let space = self.space()?;
        self.draft.rule(&format!("{hint}-other-kv"), Expr::Seq(vec![name, Expr::text(":"), space, value]))
    }

    /// So many members of one kind.
    fn counted(&mut self, member: Expr, comma: &Expr, (min, max): (u64, Option<u64>)) -> Result<Expr> {
        if max == Some(0) {
            return Ok(if min == 0 { Expr::empty() } else { Expr::never() });
        }
        let more = Expr::Seq(vec![comma.clone(), member.clone()]);
        let more = self.draft.repeat(more, min.saturating_sub(1), max.map(|max| max - 1))?;
        let all = Expr::Seq(vec![member, more]);
        Ok(if min == 0 { all.optional() } else { all })
    }

    /// One or more of the optional members. Each has a rule for what may come after it.
    fn optional(&mut self, list: Vec<Expr>, other: Option<Expr>, comma: &Expr, hint: &str) -> Result<Option<Expr>> {
        let after = |member: &Expr| Expr::Seq(vec![comma.clone(), member.clone()]);
        let mut ways = Vec::new();
        let mut rest = Expr::empty();
        if let Some(other) = &other {
            rest = after(other).any_times();
            ways.push(Expr::Seq(vec![other.clone(), rest.clone()]));
        }
        for (index, member) in list.iter().enumerate().rev() {
            ways.push(Expr::Seq(vec![member.clone(), rest.clone()]));
            if index > 0 {
                let body = Expr::Seq(vec![after(member).optional(), rest]);
                rest = self.draft.rule(&format!("{hint}-rest"), body)?;
            }
        }
        ways.reverse();
        Ok((!ways.is_empty()).then_some(Expr::Alt(ways)))
    }
}
