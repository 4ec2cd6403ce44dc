//! How long the answers to clients took: `mcp.server.operation.duration` of OpenTelemetry's conventions for MCP.

use std::time::Instant;

use isolator_pool::counts::Times;

use super::requests::Requests;

/// A method of the protocol that is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    Initialize,
    Discover,
    Ping,
    CallTool,
    ListTools,
    ListResources,
    ListTemplates,
    ReadResource,
    Complete,
}

impl Method {
    const ALL: [Self; 9] = [
        Self::Initialize,
        Self::Discover,
        Self::Ping,
        Self::CallTool,
        Self::ListTools,
        Self::ListResources,
        Self::ListTemplates,
        Self::ReadResource,
        Self::Complete,
    ];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Initialize => "initialize",
            Self::Discover => "server/discover",
            Self::Ping => "ping",
            Self::CallTool => "tools/call",
            Self::ListTools => "tools/list",
            Self::ListResources => "resources/list",
            Self::ListTemplates => "resources/templates/list",
            Self::ReadResource => "resources/read",
            Self::Complete => "completion/complete",
        }
    }
}

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OperationEnd {
    /// Well.
    Fine,
    /// The tool's answer says that it failed.
    ToolError,
    /// The parameters were wrong.
    InvalidParams,
    /// The resource does not exist.
    NotFound,
    /// Any other error of the protocol.
    OtherError,
    /// The client does not wait for the answer anymore.
    Cancelled,
}

impl OperationEnd {
    const ALL: [Self; 6] = [
        Self::Fine,
        Self::ToolError,
        Self::InvalidParams,
        Self::NotFound,
        Self::OtherError,
        Self::Cancelled,
    ];

    /// The end of an operation whose answer is an error of the protocol with this code.
    pub(crate) fn of_code(code: i32) -> Self {
        match code {
            -32602 => Self::InvalidParams,
            -32002 => Self::NotFound,
            _ => Self::OtherError,
        }
    }

    /// The attribute `error.type`: empty if there was no error.
    pub(crate) const fn error_type(self) -> &'static str {
        match self {
            Self::Fine => "",
            Self::ToolError => "tool_error",
            Self::InvalidParams => "-32602",
            Self::NotFound => "-32002",
            Self::OtherError => "_OTHER",
            Self::Cancelled => "cancelled",
        }
    }
}

/// The name that stands for all tools that are not there. Clients choose those names.
pub(crate) const NO_TOOL: &str = "_OTHER";

/// The times by how they ended.
type Ends = [Times; OperationEnd::ALL.len()];

/// How long operations took, by method, tool and end.
#[derive(Debug)]
pub(crate) struct Operations {
    /// In the order of [`Method::ALL`]. Calls of tools are below.
    methods: [Ends; Method::ALL.len()],
    tools: Vec<(&'static str, Ends)>,
    /// Those of APIs.
    requests: Requests,
}

/// The times of one kind of operation.
pub(crate) struct Kind<'a> {
    pub method: &'static str,
    /// The tool, if it is a call of one.
    pub tool: &'static str,
    /// The error; empty without one.
    pub error_type: &'static str,
    pub times: &'a Times,
}

impl Operations {
    /// For tools with these names.
    pub(crate) fn new(tools: &[&'static str]) -> Self {
        let tools = tools.iter().chain([&NO_TOOL]).map(|name| (*name, Ends::default())).collect();
        Self { methods: Default::default(), tools, requests: Requests::default() }
    }

    /// The requests of APIs.
    pub(crate) fn requests(&self) -> &Requests {
        &self.requests
    }

    /// Begins to count an operation that is no call of a tool.
    pub(crate) fn begin(&self, method: Method) -> Operation<'_> {
        Operation::new(&self.methods[method as usize])
    }

    /// Begins to count a call of a tool.
    pub(crate) fn begin_call(&self, tool: &str) -> Operation<'_> {
        let found = self.tools.iter().find(|(name, _)| *name == tool);
        let other = || self.tools.last();
        // The list is never empty.
        Operation::new(found.or_else(other).map_or(&self.methods[0], |(_, ends)| ends))
    }

    /// The times of each kind of operation that there was.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = Kind<'_>> {
        let methods = Method::ALL.iter().map(|method| (method.as_str(), ""));
        let methods = methods.zip(&self.methods);
        let call = Method::CallTool.as_str();
        let tools = self.tools.iter().map(move |(name, ends)| ((call, *name), ends));
        methods.chain(tools).flat_map(|((method, tool), ends)| {
            let kind = move |(end, times): (&OperationEnd, _)| {
                let error_type = end.error_type();
                Kind { method, tool, error_type, times }
            };
            OperationEnd::ALL.iter().zip(ends).map(kind).filter(|kind| kind.times.count() > 0)
        })
    }
}

/// An operation that is being counted. If it is dropped before its end, it was cancelled.
#[derive(Debug)]
pub(crate) struct Operation<'a> {
    ends: &'a Ends,
    began: Instant,
    end: OperationEnd,
}

impl<'a> Operation<'a> {
    fn new(ends: &'a Ends) -> Self {
        Self { ends, began: Instant::now(), end: OperationEnd::Cancelled }
    }

    /// It has ended.
    pub(crate) fn end(mut self, end: OperationEnd) {
        self.end = end;
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        self.ends[self.end as usize].add(self.began.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_is_counted_once_and_no_client_chooses_a_name() {
        let operations = Operations::new(&["run", "open"]);
        operations.begin(Method::ListTools).end(OperationEnd::Fine);
        operations.begin_call("run").end(OperationEnd::Fine);
        operations.begin_call("run").end(OperationEnd::ToolError);
        operations.begin_call("no such tool").end(OperationEnd::of_code(-32602));
        operations.begin_call("another").end(OperationEnd::of_code(-32602));
        drop(operations.begin_call("open"));
        let found: Vec<_> = operations
            .kinds()
            .map(|kind| (kind.method, kind.tool, kind.error_type, kind.times.count()))
            .collect();
        assert_eq!(
            found,
            [
                ("tools/list", "", "", 1),
                ("tools/call", "run", "", 1),
                ("tools/call", "run", "tool_error", 1),
                ("tools/call", "open", "cancelled", 1),
                ("tools/call", "_OTHER", "-32602", 2),
            ]
        );
    }
}
