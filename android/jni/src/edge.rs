//! The edge between Java and the library: what fails or panics here becomes one exception there.

use elizainference::{Error, ffi, panic};
use jni::errors::LogErrorAndDefault;
use jni::objects::{JThrowable, JValue};
use jni::{Env, EnvUnowned, jni_sig, jni_str};

/// Why a native method fails.
pub(crate) enum Failure {
    /// As the library says.
    Library(Error),
    /// The session is not open.
    Closed,
    /// A call into the Java machine failed, or threw.
    Java(jni::errors::Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Library(error)
    }
}

impl From<jni::errors::Error> for Failure {
    fn from(error: jni::errors::Error) -> Self {
        Failure::Java(error)
    }
}

/// Runs the body of a native method. When it fails an exception is pending and the default value is returned, which
/// Java does not see.
pub(crate) fn native<'local, T: Default>(
    mut env: EnvUnowned<'local>,
    body: impl FnOnce(&mut Env<'local>) -> Result<T, Failure>,
) -> T {
    let guarded = |env: &mut Env<'local>| -> jni::errors::Result<T> {
        let failure = match panic::catch(|| Ok(body(env))) {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(failure)) => failure,
            Err(caught) => Failure::Library(caught),
        };
        throw(env, failure)?;
        Ok(T::default())
    };
    // An error that is left here means that the exception could not be made; then what Java threw about that is
    // pending.
    env.with_env(guarded).resolve::<LogErrorAndDefault>()
}

fn throw(env: &mut Env<'_>, failure: Failure) -> jni::errors::Result<()> {
    let (code, message) = match failure {
        Failure::Java(jni::errors::Error::JavaException) => return Ok(()), // it is pending
        Failure::Java(jni::errors::Error::CaughtJavaException { exception, .. }) => return env.throw(&exception),
        Failure::Java(error) => {
            let error = Error::Internal(format!("JNI: {error}"));
            (ffi::code(&error), error.to_string())
        }
        Failure::Library(error) => (ffi::code(&error), error.to_string()),
        // -1 is a closed session and what is not supported; the method below takes 0 for the first.
        Failure::Closed => (0, "The session is closed".into()),
    };
    // The class loader of the calling Java method finds the class.
    let class = env.find_class(jni_str!("ai/eliza/inference/ElizaException"))?;
    let message = env.new_string(message)?;
    let exception = env.call_static_method(
        class,
        jni_str!("of"),
        jni_sig!("(ILjava/lang/String;)Lai/eliza/inference/ElizaException;"),
        &[JValue::Int(code), JValue::Object(&message)],
    )?;
    let exception = env.cast_local::<JThrowable>(exception.l()?)?;
    env.throw(exception)
}
