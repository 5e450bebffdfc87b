//! Grammars: holding what is generated to rules.

use napi_derive::napi;

use crate::edge::call;
use crate::handle::Handle;

#[napi]
impl Handle {
    #[napi]
    pub fn set_grammar(&self, source: String) -> napi::Result<()> {
        let session = self.session()?;
        call(|| session.set_grammar(source.as_bytes()))
    }

    #[napi]
    pub fn clear_grammar(&self) -> napi::Result<()> {
        let session = self.session()?;
        call(|| session.clear_grammar())
    }
}
