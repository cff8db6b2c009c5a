//! Code in contexts: where it runs, what comes of it, and which variables it leaves behind.
//!
//! A context is a process in the sandbox that keeps what code has made for the next code. Each language has one
//! that is there without being asked for, with the language's name as its id.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{DiffKind, Problem};

/// Body of `POST …/code`. Either `context` or `language`, or neither: then it is Python.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RunCode {
    /// The code. At most 8 MiB.
    pub code: String,
    /// Id of the context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// `python`, `javascript`, `typescript` or `bash`: the context that the language has anyway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// Added to the context's environment while this code runs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The code is interrupted after this time; 10 minutes when absent, at most a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u64>,
}

/// One line of the answer of `POST …/code` (`application/x-ndjson`). The last is `end` or `failed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CodeEvent {
    /// The code has its turn.
    Started {
        /// How many pieces of code the context has run, this one included.
        count: u64,
    },
    /// Text on standard output.
    Stdout(CodeText),
    /// Text on standard error.
    Stderr(CodeText),
    /// Something is shown.
    Result(Box<CodeResult>),
    /// The code failed.
    Error(CodeError),
    /// Nothing has happened for a while, and all is well.
    Keepalive {},
    /// The code has ended.
    End {},
    /// What becomes of the code is not known: the sandbox or the node failed.
    Failed {
        /// Why.
        problem: Problem,
    },
}

/// Text that code wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CodeText {
    /// The text; a line may come in several.
    pub text: String,
    /// When, by the sandbox's clock: nanoseconds since 1970.
    #[serde(default)]
    pub timestamp_ns: u64,
}

/// Something that code shows, in all forms that it has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CodeResult {
    /// It is the value of the last expression, and was not shown on the way.
    pub main: bool,
    /// Plain text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// HTML.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub html: Option<String>,
    /// Markdown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub markdown: Option<String>,
    /// SVG.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub svg: Option<String>,
    /// PNG in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub png: Option<String>,
    /// JPEG in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jpeg: Option<String>,
    /// PDF in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pdf: Option<String>,
    /// LaTeX.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latex: Option<String>,
    /// JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub json: Option<Value>,
    /// JavaScript.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub javascript: Option<String>,
    /// Columns of a table, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    /// What a figure shows, as numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chart: Option<Value>,
    /// Other forms, by media type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra: Option<Map<String, Value>>,
}

/// Why code failed, in the words of its language.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CodeError {
    /// What kind of error; `ContextDied` if the context's process has ended, `TimedOut` if the time was over.
    pub name: String,
    /// What it says.
    pub value: String,
    /// Where it was raised; may hold colours of a terminal.
    pub traceback: String,
}

/// Body of `POST …/contexts`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateContext {
    /// `python` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// Where its code begins; the user's home when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// A context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CodeContext {
    /// Names it; children of a fork have the same ones.
    pub id: String,
    /// What it speaks.
    pub language: String,
    /// Where its code began.
    pub cwd: String,
}

/// Answer of `GET …/contexts`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ContextList {
    /// In the order in which they were made.
    pub contexts: Vec<CodeContext>,
}

/// Answer of `POST …/contexts/{context}/interrupt`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Interrupted {
    /// Something ran.
    pub interrupted: bool,
}

/// A variable of a Python context that differs between two sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DiffVariable {
    /// Id of the context, which is the same on both sides.
    pub context: String,
    /// Name.
    pub name: String,
    /// How.
    pub change: DiffKind,
    /// What it was; absent if it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<VariableState>,
    /// What it is; absent if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<VariableState>,
}

/// What a variable is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VariableState {
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its value in at most 200 characters; of types that are not built in often only the type.
    pub value: String,
}
