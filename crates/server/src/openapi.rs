//! The OpenAPI 3.1 document, generated from the routes and from the types of `api`.

use crate::contract::{Carries, Param, ResponseShape, Route, params};
use crate::routes;
use api::{Code, ErrorBody, UnreadableView};
use schemars::SchemaGenerator;
use schemars::generate::{Contract, SchemaSettings};
use serde_json::{Map, Value, json};

/// Parameters that many routes have: described once and referenced.
const SHARED: &[Param] = &[params::LIMIT, params::IDEMPOTENCY_KEY];

/// The name of the only security scheme.
const KEY: &str = "key";

pub fn document() -> Value {
    let (sent, read) = (generator(Contract::Serialize), generator(Contract::Deserialize));
    let mut writer = SchemaWriter { sent, read, refusals: Map::new() };
    let (mut tags, mut paths) = (Vec::new(), Map::new());
    for (area, about, routes) in routes::areas() {
        tags.push(json!({ "name": area, "description": about }));
        for route in &routes {
            let path = paths.entry(route.path.replace("{*", "{")).or_insert_with(|| json!({}));
            for method in &route.methods {
                let method = method.as_str().to_ascii_lowercase();
                let id = if route.methods.len() == 1 { route.id.to_owned() } else { format!("{}_{method}", route.id) };
                path[method.as_str()] = writer.operation(area, route, &id);
            }
        }
    }
    let parameters: Map<String, Value> = SHARED.iter().map(|p| (p.name.to_owned(), parameter(p, place(p)))).collect();
    writer.refusals.sort_keys();
    let responses = std::mem::take(&mut writer.refusals);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Onward",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "A response is `{\"data\": …}`, a list `{\"data\": […], \"next\": cursor}`, an error \
                `{\"error\": {code, message, hint?, at?, problems?}}`. Times are RFC 3339 in UTC. Clients must ignore \
                fields that they do not know.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "tags": tags,
        "paths": paths,
        "components": {
            "schemas": writer.schemas(),
            "parameters": parameters,
            "responses": responses,
            "securitySchemes": { KEY: {
                "type": "http",
                "scheme": "bearer",
                "description": "the admin key of `onward serve`; `onward dev` requires none",
            } },
        },
    })
}

fn generator(contract: Contract) -> SchemaGenerator {
    let mut settings = SchemaSettings::draft2020_12();
    settings.meta_schema = None;
    settings.definitions_path = "/components/schemas".into();
    settings.contract = contract;
    settings.into_generator()
}

fn place(param: &Param) -> &'static str {
    if param.name.starts_with(|c: char| c.is_ascii_uppercase()) { "header" } else { "query" }
}

fn parameter(param: &Param, place: &str) -> Value {
    let mut schema = (param.schema)();
    if param.is_repeated {
        schema = json!({ "type": "array", "items": schema });
    }
    let mut value = json!({ "name": param.name, "in": place, "description": param.about, "schema": schema });
    if place == "path" || param.is_required {
        value["required"] = json!(true);
    }
    value
}

struct SchemaWriter {
    /// Schemas of responses and of requests: a field may be optional in one of them only.
    sent: SchemaGenerator,
    read: SchemaGenerator,
    /// Error responses. Many routes share one, so each is described once.
    refusals: Map<String, Value>,
}

impl SchemaWriter {
    fn operation(&mut self, area: &str, route: &Route, id: &str) -> Value {
        let mut parameters = Vec::new();
        for name in route.path_params() {
            let param = params::PATH.iter().find(|p| p.name == name);
            let param = param.unwrap_or_else(|| panic!("`{{{name}}}` is not described in `params::PATH`"));
            parameters.push(parameter(param, "path"));
        }
        for param in route.query.iter().chain(&route.headers) {
            let is_shared = SHARED.iter().any(|p| p.name == param.name && p.about == param.about);
            parameters.push(match is_shared {
                true => json!({ "$ref": format!("#/components/parameters/{}", param.name) }),
                false => parameter(param, place(param)),
            });
        }
        let mut operation = json!({ "operationId": id, "tags": [area], "summary": route.summary });
        if route.needs_key() {
            // The empty object: `dev` requires no key.
            operation["security"] = json!([{ KEY: [] }, {}]);
        }
        if !parameters.is_empty() {
            operation["parameters"] = parameters.into();
        }
        if let Some(carries) = route.carries {
            operation["requestBody"] = self.request_body(carries);
        }
        operation["responses"] = self.responses(route);
        operation
    }

    fn request_body(&mut self, carries: Carries) -> Value {
        match carries {
            Carries::Definition => {
                let schema = json!({ "schema": { "$ref": "#/components/schemas/Definition" } });
                json!({ "required": true, "content": { "application/json": schema, "application/yaml": schema } })
            }
            Carries::Change => {
                let change = self.read.subschema_for::<api::WorkflowChange>().to_value();
                let either = json!({ "anyOf": [{ "$ref": "#/components/schemas/Definition" }, change] });
                let schema = json!({ "schema": either });
                json!({ "required": true, "content": { "application/json": schema, "application/yaml": schema } })
            }
            Carries::Payload => json!({
                "description": "any JSON; an empty body is `null`",
                "content": { "application/json": { "schema": {} } },
            }),
            Carries::Bytes => json!({
                "description": "any bytes of any media type; a body that is not JSON is stored as text",
                "content": { "application/json": { "schema": {} }, "*/*": { "schema": {} } },
            }),
            Carries::Json { schema, is_required } => {
                let mut schema = schema(&mut self.read).to_value();
                if !is_required {
                    // `null` means the same as an empty body.
                    schema = json!({ "anyOf": [schema, { "type": "null" }] });
                }
                json!({ "required": is_required, "content": { "application/json": { "schema": schema } } })
            }
        }
    }

    fn responses(&mut self, route: &Route) -> Value {
        let mut responses = Map::new();
        for (status, about, shape) in &route.answers {
            let answer = self.answer(about, *shape);
            match responses.get_mut(&status.to_string()) {
                None => drop(responses.insert(status.to_string(), answer)),
                Some(earlier) => merge(earlier, answer),
            }
        }
        let mut refusals = route.refusals();
        if route.reads_documents() {
            for status in [400, 413, 422] {
                refusals.entry(status).or_default();
            }
        }
        for (status, codes) in refusals {
            let is_open = route.reads_documents() && matches!(status, 400 | 413 | 422);
            let name = self.refusal(status, &codes, is_open);
            responses.insert(status.to_string(), json!({ "$ref": format!("#/components/responses/{name}") }));
        }
        Value::Object(responses)
    }

    fn answer(&mut self, about: &str, shape: ResponseShape) -> Value {
        let (media, schema) = match shape {
            ResponseShape::Nothing => return json!({ "description": about }),
            ResponseShape::Plain(media @ "application/json") => (media, json!({ "type": "object" })),
            ResponseShape::Plain(media) => (media, json!({ "type": "string" })),
            ResponseShape::Events(event) => {
                let event = event(&mut self.sent).to_value();
                let about = "server-sent events; each `data` is one of `x-event`";
                return json!({ "description": about, "content": { "text/event-stream": {
                    "schema": { "type": "string", "x-event": event } } } });
            }
            ResponseShape::Whole(whole) => ("application/json", whole(&mut self.sent).to_value()),
            ResponseShape::Data(data) => {
                let data = data(&mut self.sent).to_value();
                ("application/json", json!({ "type": "object", "required": ["data"], "properties": { "data": data } }))
            }
            ResponseShape::Page(item) | ResponseShape::RunPage(item) => {
                let item = item(&mut self.sent).to_value();
                let mut properties =
                    json!({ "data": { "type": "array", "items": item }, "next": { "type": ["string", "null"] } });
                if let ResponseShape::RunPage(_) = shape {
                    let unreadable = self.sent.subschema_for::<UnreadableView>().to_value();
                    properties["unreadable"] = json!({ "type": "array", "items": unreadable });
                }
                (
                    "application/json",
                    json!({ "type": "object", "required": ["data", "next"], "properties": properties }),
                )
            }
        };
        json!({ "description": about, "content": { media: { "schema": schema } } })
    }

    /// The name of an error response with one of `codes` or, if the route reads documents, with a code of `lang`.
    fn refusal(&mut self, status: u16, codes: &[Code], is_open: bool) -> String {
        let body = self.sent.subschema_for::<ErrorBody>().to_value();
        let names: Vec<&str> = codes.iter().map(|code| code.as_str()).collect();
        let mut name = format!("{status}.{}", names.join("."));
        let mut about: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        if is_open {
            about.push("or a problem in the document".into());
            name.push_str(".document");
        }
        let code = json!({ "type": "object", "properties": {
            "error": { "type": "object", "properties": { "code": { "enum": names } } } } });
        let schema = if is_open { body } else { json!({ "allOf": [body, code] }) };
        let mut answer =
            json!({ "description": about.join(", "), "content": { "application/json": { "schema": schema } } });
        if status == 503 {
            let about = "seconds to wait before the next try";
            answer["headers"] = json!({ "Retry-After": { "description": about, "schema": { "type": "string" } } });
        }
        self.refusals.insert(name.clone(), answer);
        name
    }

    fn schemas(mut self) -> Map<String, Value> {
        let mut schemas = self.sent.take_definitions(true);
        schemas.extend(self.read.take_definitions(true));
        schemas.insert("Definition".into(), definition());
        schemas.sort_keys();
        schemas
    }
}

/// Merges two successful responses with the same status into one that allows both.
fn merge(earlier: &mut Value, mut answer: Value) {
    if earlier["description"] != answer["description"] {
        let about = format!("{}, or {}", text(&earlier["description"]), text(&answer["description"]));
        earlier["description"] = json!(about);
    }
    for (media, content) in answer["content"].as_object_mut().into_iter().flatten() {
        let known = &mut earlier["content"][media.as_str()];
        *known = match known.take() {
            Value::Null => content.take(),
            first => json!({ "schema": { "anyOf": [first["schema"], content["schema"]] } }),
        };
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The outline of a definition. `lang` checks the rest, with better messages than a schema could give.
fn definition() -> Value {
    json!({
        "description": "a workflow as docs/reference/graph.md describes it",
        "type": "object",
        "required": ["name", "tasks"],
        "properties": {
            "name": { "type": "string", "minLength": 1, "maxLength": 80 },
            "slug": { "type": "string", "pattern": "^[a-z0-9][a-z0-9_-]{0,79}$" },
            "description": { "type": "string" },
            "tags": { "type": "array", "items": { "type": "string" } },
            "tasks": { "type": "object", "minProperties": 1, "additionalProperties": { "type": "object" } },
        },
        "examples": [{ "name": "hello", "tasks": { "greet": { "log": { "message": "hello {{trigger.body.name}}" } } } }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ids_are_distinct_and_every_reference_resolves() {
        let document = document();
        let mut ids = BTreeSet::new();
        for (path, operations) in document["paths"].as_object().unwrap() {
            for (method, operation) in operations.as_object().unwrap() {
                assert!(ids.insert(operation["operationId"].as_str().unwrap().to_owned()), "{method} {path}");
                assert!(operation["responses"].as_object().unwrap().keys().any(|s| s.starts_with('2')), "{path}");
            }
        }
        let text = document.to_string();
        for reference in text.split("\"$ref\":\"#").skip(1).map(|rest| rest.split('"').next().unwrap()) {
            assert!(document.pointer(reference).is_some(), "{reference}");
        }
    }

    #[test]
    fn every_error_code_belongs_to_a_route() {
        let declared: BTreeSet<&str> = routes::areas()
            .iter()
            .flat_map(|(_, _, routes)| routes.iter().flat_map(|r| r.refusals().into_values().flatten()))
            .map(|code| code.as_str())
            .collect();
        // Responses to requests that match no route.
        let without_route = ["unknown_route", "method_not_allowed"];
        for code in Code::ALL.iter().map(|code| code.as_str()).filter(|code| !without_route.contains(code)) {
            assert!(declared.contains(code), "{code}");
        }
    }
}
