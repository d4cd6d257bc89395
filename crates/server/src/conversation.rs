//! From the messages of a request to the tokens of a prompt: what clients write is brought into the form that templates
//! expect, and refused where there is none.

use crate::constraint::Constraint;
use crate::error::{ApiError, echo};
use crate::limits::{TOOL_NAME_BYTES, TOOLS};
use crate::model::Model;
use crate::ranges::TOOL_CHOICES;
use crate::wire::ChatRequest;
use serde_json::{Map, Value, json};
use std::collections::HashSet;
use tombolo_text::grammar::{Calls, Reasoning, Source};
use tombolo_text::output::Tools;
use tombolo_text::{ChatTemplate, Conversation, Tokenizer};

/// A conversation as the model sees it.
pub(crate) struct Chat {
    pub(crate) tokens: Vec<u32>,
    /// The prompt ends inside the reasoning that the answer goes on with.
    pub(crate) opens_reasoning: bool,
    /// Whether the answer reasons before what it may be held to.
    pub(crate) reasoning: Reasoning,
    pub(crate) tools: Tools,
    pub(crate) has_tools: bool,
    /// Those of them that must be called.
    pub(crate) calls: Option<Constraint>,
}

/// Renders a request's conversation.
pub(crate) fn prompt(model: &Model, request: &ChatRequest) -> Result<Chat, ApiError> {
    refuse_unsupported(request)?;
    let offered = tools(request)?;
    let has_tools = !offered.is_empty();
    let Some((template, tokenizer)) = model.template(has_tools).zip(model.tokenizer.as_ref()) else {
        let message = "this model has no chat template, so it takes no conversations: use /v1/completions";
        return Err(ApiError::field("messages", message));
    };
    if request.messages.is_empty() {
        return Err(ApiError::field("messages", "there are no messages"));
    }
    let calls = must_call(request, &offered, template, tokenizer)?;
    let messages = request.messages.iter().enumerate().map(|(at, message)| turn(at, message));
    let mut settings = request.chat_template_kwargs.clone().unwrap_or_default();
    if let Some(effort) = &request.reasoning_effort {
        settings.entry("reasoning_effort").or_insert_with(|| Value::from(effort.as_str()));
    }
    let tools = Tools::of(&offered);
    let conversation = Conversation {
        messages: messages.collect::<Result<_, _>>()?,
        tools: offered,
        documents: request.documents.iter().flatten().cloned().map(Value::Object).collect(),
        add_generation_prompt: request.add_generation_prompt.unwrap_or(true),
        settings,
    };
    let prompt = template.prompt(&conversation)?;
    let tokens = tokenizer.encode_prompt(&prompt)?;
    if tokens.is_empty() {
        return Err(ApiError::field("messages", "the conversation is empty"));
    }
    let opens_reasoning = prompt.opens_reasoning();
    let reasoning = template.reasoning(&prompt);
    Ok(Chat { tokens, opens_reasoning, reasoning, tools, has_tools, calls })
}

/// The calls that `tool_choice` asks for.
fn must_call(
    request: &ChatRequest,
    tools: &[Value],
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
) -> Result<Option<Constraint>, ApiError> {
    let field = "tool_choice";
    let named = match &request.tool_choice {
        Some(Value::String(choice)) if choice == "required" => None,
        Some(Value::Object(choice)) => named(choice),
        _ => return Ok(None),
    };
    let Some(form) = template.call_form() else {
        let message = "`tool_choice`: this model's chat template teaches no way of calling tools that is known here, so \
                       none can be required";
        return Err(ApiError::field(field, message));
    };
    let several = request.parallel_tool_calls != Some(false);
    let source = Source::calls(&Calls { form, tools, named, several }, tokenizer);
    let source = source.map_err(|error| Constraint::wrong(field, &error))?;
    Ok(Some(Constraint { field: field.into(), source }))
}

/// The function that a choice names.
fn named(choice: &Map<String, Value>) -> Option<&str> {
    choice.get("function").and_then(|function| function.get("name")).and_then(Value::as_str)
}

/// Refuses a choice of what is not there.
fn check_choice(request: &ChatRequest) -> Result<(), ApiError> {
    let wrong = |message: String| Err(ApiError::field("tool_choice", message));
    let tools = request.tools.as_deref().unwrap_or_default();
    let wanted = match &request.tool_choice {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::String(choice)) if choice == "required" => None,
        Some(Value::String(choice)) if TOOL_CHOICES.contains(&choice.as_str()) => return Ok(()),
        Some(Value::Object(choice)) => match named(choice) {
            None => return wrong("`tool_choice` must be {\"type\": \"function\", \"function\": {\"name\": …}}".into()),
            name => name,
        },
        Some(_) => return wrong("`tool_choice` must be `none`, `auto`, `required` or one function".into()),
    };
    let mut names = tools.iter().filter_map(|tool| tool.get("function")?.get("name")?.as_str());
    match wanted {
        None if tools.is_empty() => wrong("`tool_choice` is `required`, but there are no `tools`".into()),
        Some(name) if tools.is_empty() => {
            wrong(format!("`tool_choice` names the function `{}`, but there are no `tools`", echo(name)))
        }
        Some(name) if !names.any(|known| known == name) => {
            wrong(format!("`tool_choice` names the function `{}`, which is not among the `tools`", echo(name)))
        }
        _ => Ok(()),
    }
}

fn refuse_unsupported(request: &ChatRequest) -> Result<(), ApiError> {
    if request.chat_template.is_some() {
        return Err(ApiError::field("chat_template", "the model brings its own chat template; requests may not"));
    }
    if request.continue_final_message == Some(true) {
        return Err(ApiError::unsupported("continue_final_message"));
    }
    if request.functions.as_ref().is_some_and(|functions| !functions.is_empty()) {
        return Err(ApiError::field("functions", "`functions` is not supported: use `tools`"));
    }
    if request.modalities.iter().flatten().any(|modality| modality != "text") {
        return Err(ApiError::unsupported("modalities"));
    }
    Ok(())
}

/// The tools that may be called.
fn tools(request: &ChatRequest) -> Result<Vec<Value>, ApiError> {
    let wrong = |message: String| ApiError::field("tools", message);
    let tools = request.tools.as_deref().unwrap_or_default();
    if tools.len() > TOOLS {
        return Err(wrong(format!("{} tools are too many; at most {TOOLS} are possible", tools.len())));
    }
    let mut names = HashSet::new();
    for tool in tools {
        let function = tool.get("function").and_then(Value::as_object);
        let name = function.and_then(|function| function.get("name")).and_then(Value::as_str);
        let (Some(function), Some(name)) = (function, name) else {
            return Err(wrong("a tool must be {\"type\": \"function\", \"function\": {\"name\": …}}".into()));
        };
        if name.is_empty() || name.len() > TOOL_NAME_BYTES {
            return Err(wrong(format!("a tool's name has 1 to {TOOL_NAME_BYTES} bytes")));
        }
        if !names.insert(name) {
            return Err(wrong(format!("two tools are called `{}`", echo(name))));
        }
        if function.get("parameters").is_some_and(|parameters| !parameters.is_object() && !parameters.is_null()) {
            return Err(wrong(format!("the parameters of `{}` are no JSON schema", echo(name))));
        }
    }
    check_choice(request)?;
    if request.tool_choice.as_ref().is_some_and(|choice| choice == "none") {
        return Ok(Vec::new());
    }
    Ok(tools.iter().cloned().map(Value::Object).collect())
}

/// One message: its content as text, its calls with arguments as objects.
fn turn(at: usize, message: &Map<String, Value>) -> Result<Value, ApiError> {
    let wrong = |field: &str, what: &str| ApiError::field(&format!("messages[{at}].{field}"), what.to_string());
    let Some(role) = message.get("role").and_then(Value::as_str).filter(|role| !role.is_empty()) else {
        return Err(wrong("role", "a message needs a `role`"));
    };
    let mut turn = message.clone();
    // Models know it by its old name.
    turn.insert("role".into(), Value::from(if role == "developer" { "system" } else { role }));
    let calls = message.get("tool_calls").filter(|calls| !calls.is_null());
    match message.get("content") {
        Some(Value::String(_)) => {}
        Some(Value::Array(parts)) => {
            let texts: Result<Vec<&str>, ApiError> = parts.iter().map(|part| text_of(part, &wrong)).collect();
            turn.insert("content".into(), Value::from(texts?.join("\n")));
        }
        // Templates put texts together, and know of no message without one.
        None | Some(Value::Null) if role == "assistant" => {
            turn.insert("content".into(), Value::from(""));
        }
        None | Some(Value::Null) => return Err(wrong("content", "a message needs `content`")),
        Some(_) => return Err(wrong("content", "`content` must be a string or a list of parts")),
    }
    if let Some(calls) = calls {
        let calls = calls.as_array().ok_or_else(|| wrong("tool_calls", "`tool_calls` must be a list"))?;
        let calls: Result<Vec<Value>, ApiError> = calls.iter().map(|call| with_arguments(call, &wrong)).collect();
        turn.insert("tool_calls".into(), Value::Array(calls?));
    }
    Ok(Value::Object(turn))
}

fn text_of<'v>(part: &'v Value, wrong: &dyn Fn(&str, &str) -> ApiError) -> Result<&'v str, ApiError> {
    let kind = part.get("type").and_then(Value::as_str);
    match (kind, part.get("text").and_then(Value::as_str)) {
        (Some("text") | None, Some(text)) => Ok(text),
        (Some("text") | None, None) => Err(wrong("content", "a part of `content` needs `text`")),
        (Some(kind), _) => {
            Err(wrong("content", &format!("parts of type `{}` are not supported: text only", echo(kind))))
        }
    }
}

/// A call whose arguments are an object: clients send them as text, templates print them.
fn with_arguments(call: &Value, wrong: &dyn Fn(&str, &str) -> ApiError) -> Result<Value, ApiError> {
    let function = call.get("function").and_then(Value::as_object);
    let Some(function) = function.filter(|function| function.get("name").is_some_and(Value::is_string)) else {
        return Err(wrong("tool_calls", "a call needs `function` with a `name`"));
    };
    let mut function = function.clone();
    let arguments = match function.get("arguments") {
        None | Some(Value::Null) => json!({}),
        Some(Value::String(text)) if text.trim().is_empty() => json!({}),
        // What a model wrote and is no JSON goes back to it as it was.
        Some(Value::String(text)) => serde_json::from_str(text).unwrap_or_else(|_| Value::from(text.as_str())),
        Some(other) => other.clone(),
    };
    function.insert("arguments".into(), arguments);
    let mut call = call.as_object().cloned().unwrap_or_default();
    call.insert("function".into(), Value::Object(function));
    Ok(Value::Object(call))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(message: Value) -> Result<Value, ApiError> {
        turn(3, message.as_object().unwrap())
    }

    #[test]
    fn turns_are_brought_into_one_form() {
        let parts = json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b"}]});
        assert_eq!(made(parts).unwrap(), json!({"role": "user", "content": "a\nb"}));
        assert_eq!(made(json!({"role": "developer", "content": "x"})).unwrap()["role"], "system");
        let call = json!({"role": "assistant", "content": null,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]});
        let turn = made(call).unwrap();
        assert_eq!(turn["tool_calls"][0]["function"]["arguments"], json!({"a": 1}));
        assert_eq!(turn["content"], "");
    }

    #[test]
    fn a_choice_of_what_is_not_there_is_refused_as_such() {
        let tool = json!({"type": "function", "function": {"name": "f"}});
        let named = |name: &str| json!({"type": "function", "function": {"name": name}});
        for (tools, choice, what) in [
            (json!(null), json!("required"), Some("`required`, but there are no `tools`")),
            (json!([]), json!("required"), Some("`required`, but there are no `tools`")),
            (json!([]), named("f"), Some("the function `f`, but there are no `tools`")),
            (json!([tool]), named("g"), Some("the function `g`, which is not among the `tools`")),
            (json!([tool]), json!({"type": "function"}), Some("must be {\"type\": \"function\"")),
            (json!([tool]), json!("f"), Some("must be `none`, `auto`, `required` or one function")),
            (json!([tool]), json!(7), Some("must be `none`, `auto`, `required` or one function")),
            (json!([tool]), named("f"), None),
            (json!([tool]), json!("required"), None),
            (json!([]), json!("auto"), None),
            (json!(null), json!("none"), None),
        ] {
            let body = json!({"messages": [], "tools": tools, "tool_choice": choice});
            let told = tools_of(body).err().map(|error| (error.body.error.param.unwrap(), error.body.error.message));
            assert_eq!(told.is_some(), what.is_some(), "{tools} {choice}");
            if let (Some((param, message)), Some(what)) = (told, what) {
                assert_eq!(param, "tool_choice");
                assert!(message.contains(what), "{message}");
            }
        }
    }

    fn tools_of(body: Value) -> Result<Vec<Value>, ApiError> {
        tools(&serde_json::from_value(body).unwrap())
    }

    #[test]
    fn what_is_no_turn_is_refused_by_its_place() {
        for (message, field) in [
            (json!({"content": "x"}), "messages[3].role"),
            (json!({"role": "user"}), "messages[3].content"),
            (json!({"role": "user", "content": null}), "messages[3].content"),
            (json!({"role": "user", "content": 7}), "messages[3].content"),
            (
                json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}),
                "messages[3].content",
            ),
            (json!({"role": "assistant", "content": "", "tool_calls": [{}]}), "messages[3].tool_calls"),
        ] {
            assert_eq!(made(message).unwrap_err().body.error.param.as_deref(), Some(field));
        }
    }
}
