//! The Common Expression Language, for match conditions of webhooks and validation rules of custom resources.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use cel::objects::{Key, Map};
use cel::{Context, Env, Program};
use parking_lot::Mutex;
use serde_json::Value;

/// The environment: the standard library, and the Kubernetes additions that the `cel` crate supports.
static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut env = Env::stdlib();
    // If the extension cannot be added, expressions that use it fail with their own error.
    let _ = env.add_extension(cel::extensions::strings);
    Arc::new(env)
});

/// Cache of compiled expressions: parsing costs far more than evaluation.
static PROGRAMS: LazyLock<Mutex<HashMap<String, Arc<Program>>>> = LazyLock::new(Mutex::default);

/// Compiles an expression. The error is human-readable.
pub(crate) fn compile(source: &str) -> Result<Arc<Program>, String> {
    if let Some(program) = PROGRAMS.lock().get(source) {
        return Ok(program.clone());
    }
    let program = Arc::new(ENV.compile(source).map_err(|e| format!("compilation failed: {e}"))?);
    PROGRAMS.lock().insert(source.to_owned(), program.clone());
    Ok(program)
}

/// Evaluates an expression that must return a boolean.
pub(crate) fn holds(source: &str, variables: &[(&str, &Value)]) -> Result<bool, String> {
    match evaluate(source, variables)? {
        cel::Value::Bool(answer) => Ok(answer),
        other => Err(format!("expression must evaluate to bool, got {:?}", other.type_of())),
    }
}

/// Evaluates an expression that must return a string.
pub(crate) fn text(source: &str, variables: &[(&str, &Value)]) -> Result<String, String> {
    match evaluate(source, variables)? {
        cel::Value::String(text) => Ok(text.to_string()),
        other => Err(format!("expression must evaluate to string, got {:?}", other.type_of())),
    }
}

fn evaluate(source: &str, variables: &[(&str, &Value)]) -> Result<cel::Value, String> {
    let program = compile(source)?;
    let mut context = Context::with_env(ENV.clone());
    for (name, value) in variables {
        context.add_variable_from_value(*name, to_cel(value));
    }
    program.execute(&context).map_err(|e| e.to_string())
}

/// Converts JSON to CEL. Whole numbers become signed integers, as in a structural schema.
fn to_cel(value: &Value) -> cel::Value {
    match value {
        Value::Null => cel::Value::Null,
        Value::Bool(flag) => cel::Value::Bool(*flag),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => cel::Value::Int(whole),
            None => cel::Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => cel::Value::String(Arc::new(text.clone())),
        Value::Array(list) => cel::Value::List(Arc::new(list.iter().map(to_cel).collect())),
        Value::Object(map) => {
            let map: HashMap<Key, cel::Value> =
                map.iter().map(|(k, v)| (Key::String(Arc::new(k.clone())), to_cel(v))).collect();
            cel::Value::Map(Map { map: Arc::new(map) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{compile, holds, text};
    use serde_json::json;

    #[test]
    fn expressions_of_webhooks_are_evaluated() {
        let request =
            json!({"operation": "DELETE", "userInfo": {"username": "system:node:n1", "groups": ["a", "b"]}});
        let old = json!({"metadata": {"name": "x"}});
        let vars = [("request", &request), ("oldObject", &old)];
        let yes = [
            "request.operation != 'DELETE' || !has(oldObject.metadata.deletionTimestamp)",
            "request.userInfo.username.startsWith('system:node:')",
            "'a' in request.userInfo.groups",
            "request.userInfo.groups.exists(g, g == 'b')",
            "size(request.userInfo.groups) == 2",
        ];
        for expression in yes {
            assert_eq!(holds(expression, &vars), Ok(true), "{expression}");
        }
        assert_eq!(holds("request.operation == 'CREATE'", &vars), Ok(false));
        assert!(holds("oldObject.spec.x == 1", &vars).is_err());
        assert!(holds("request.operation", &vars).is_err());
        assert!(compile("a ==").is_err());
    }

    #[test]
    fn whole_numbers_are_ints() {
        let me = json!({"replicas": 3, "min": 1});
        assert_eq!(holds("self.replicas - self.min >= 2", &[("self", &me)]), Ok(true));
        assert_eq!(text("'n is ' + string(self.replicas)", &[("self", &me)]), Ok("n is 3".to_owned()));
    }
}
