use super::*;
use crate::{Syntax, compile, read};

fn definition(schema: &str) -> Result<crate::Compiled, Vec<crate::Diagnostic>> {
    let text = format!("name: w\ninput: {schema}\ntasks: {{a: {{noop: {{}}}}}}\n");
    compile(&read(text.as_bytes(), Syntax::Yaml).unwrap())
}

fn schema(text: &str) -> std::sync::Arc<InputSchema> {
    definition(text).unwrap_or_else(|problems| panic!("{problems:?}")).input.unwrap()
}

fn refused(text: &str) -> Vec<String> {
    definition(text).unwrap_err().iter().map(ToString::to_string).collect()
}

fn problems(schema: &InputSchema, body: &str) -> Vec<String> {
    match schema.check(body.as_bytes(), &mut Budget::default()) {
        Ok(()) => Vec::new(),
        Err(found) => found.iter().map(|p| p.message.clone() + p.hint.as_ref().map_or("", |h| h)).collect(),
    }
}

#[test]
fn a_body_that_does_not_fit_gets_every_problem_with_its_pointer() {
    let schema = schema(
        "{type: object, required: [id, lines], additionalProperties: false, properties: {id: {type: string, minLength: 3},
          lines: {type: array, items: {type: object, properties: {count: {type: integer, minimum: 1}}}},
          kind: {enum: [a, b]}, mail: {format: email, type: string}}}",
    );
    assert_eq!(problems(&schema, r#"{"id": "abc", "lines": [{"count": 1}]}"#), [""; 0]);
    let body =
        br#"{"id": "x", "lines": [{"count": 1}, {"count": 0}, {"count": "7"}], "kind": "c", "mail": "m", "extra": 1}"#;
    let mut found = schema.check(body, &mut Budget::default()).unwrap_err();
    found.sort_by(|a, b| a.pointer.cmp(&b.pointer));
    let lines: Vec<String> = found.iter().map(|p| format!("{} | {}", p.pointer, p.message)).collect();
    assert_eq!(
        lines,
        [
            " | the body must not have a field `extra`",
            "/id | `/id` has 1 character, the least is 3",
            "/kind | `/kind` is `c`, allowed is `a` or `b`",
            "/lines/1/count | `/lines/1/count` is 0, the least is 1",
            "/lines/2/count | `/lines/2/count` must be a whole number, found a text",
            "/mail | `/mail` is `m`, which does not have the format `email`",
        ]
    );
    assert_eq!(problems(&schema, "null"), ["the body must be an object, found null"]);
    assert_eq!(problems(&schema, "{}"), ["the body needs a field `id`", "the body needs a field `lines`"]);
}

#[test]
fn of_several_alternatives_the_nearest_is_explained() {
    let schema = schema(
        "{oneOf: [{type: object, required: [card, cvc], properties: {card: {type: string}}},
                  {type: object, required: [iban], properties: {iban: {type: string}}}]}",
    );
    assert_eq!(
        problems(&schema, r#"{"iban": 7}"#),
        ["the body fits none of the alternatives of `oneOf`of alternative 2: `/iban` must be a text, found a number"]
    );
    assert_eq!(
        problems(&schema, r#"{"iban": "a", "card": "b", "cvc": 1}"#),
        ["the body fits several alternatives of `oneOf`, and must fit one"]
    );
}

#[test]
fn a_schema_that_cannot_be_honoured_is_refused_where_it_is_wrong() {
    for (schema, problem) in [
        ("7", "2:8 wrong_type input: `input` must be an object, found a number"),
        (
            "{type: strin}",
            "2:15 invalid_schema input.type: `type` is `strin`, allowed is `null`, `boolean`, `object`, `array`, `number`, `integer` or `string` (did you mean `string`?)",
        ),
        (
            "{type: [text, 'null']}",
            "2:16 invalid_schema input.type[0]: `type` is `text`, allowed is `null`, `boolean`, `object`, `array`, `number`, `integer` or `string` (write `string`)",
        ),
        (
            "{propertis: {}}",
            "2:9 invalid_schema input.propertis: JSON Schema 2020-12 has no keyword `propertis` (did you mean `properties`?)",
        ),
        (
            "{nullable: true}",
            "2:9 invalid_schema input.nullable: JSON Schema 2020-12 has no keyword `nullable` (write `type: [string, \"null\"]`)",
        ),
        (
            "{properties: {a: {minimum: '1'}}}",
            "2:35 invalid_schema input.properties.a.minimum: `/properties/a/minimum` must be a number, found a text",
        ),
        ("{required: a}", "2:19 invalid_schema input.required: `/required` must be a list, found a text"),
        (
            "{$ref: 'https://example.com/a.json'}",
            "2:15 unsupported_schema input[\"$ref\"]: `$ref` names `https://example.com/a.json`, and a schema can only refer to its own parts (copy that schema into `$defs` and write `#/$defs/name`: nothing is fetched)",
        ),
        (
            "{$ref: 'file:///etc/passwd'}",
            "2:15 unsupported_schema input[\"$ref\"]: `$ref` names `file:///etc/passwd`, and a schema can only refer to its own parts (copy that schema into `$defs` and write `#/$defs/name`: nothing is fetched)",
        ),
        (
            "{$ref: '#/$defs/lin', $defs: {line: {}}}",
            "2:15 invalid_schema input[\"$ref\"]: there is no schema at `#/$defs/lin` (did you mean `#/$defs/line`?)",
        ),
        (
            "{$schema: 'http://json-schema.org/draft-07/schema#'}",
            "2:18 unsupported_schema input[\"$schema\"]: the schema is in the dialect `http://json-schema.org/draft-07/schema#` (leave `$schema` out, or write `https://json-schema.org/draft/2020-12/schema`)",
        ),
        (
            "{$defs: {a: {$id: 'https://x/a'}}}",
            "2:21 unsupported_schema input[\"$defs\"].a[\"$id\"]: `$id` may only stand at the top of the schema (write `$anchor: name`, and refer to it with `$ref: \"#name\"`)",
        ),
        (
            "{pattern: '^(?=a)b'}",
            "2:18 unsupported_schema input.pattern: `^(?=a)b` is not a regular expression that can be matched in linear time (look-around and backreferences are not supported, and repetitions have to be small)",
        ),
        (
            "{pattern: '(a{999}){999}'}",
            "2:18 unsupported_schema input.pattern: `(a{999}){999}` is not a regular expression that can be matched in linear time (look-around and backreferences are not supported, and repetitions have to be small)",
        ),
        (
            "{patternProperties: {'(': {}}}",
            "2:29 unsupported_schema input.patternProperties[\"(\"]: `(` is not a regular expression that can be matched in linear time (look-around and backreferences are not supported, and repetitions have to be small)",
        ),
        (
            "{format: telephone}",
            "2:17 unsupported_schema input.format: `format` is `telephone`, and there is no such format here (leave it out, or describe the text with `pattern`)",
        ),
        (
            "{$ref: '#'}",
            "2:8 invalid_schema input: the schema refers to itself for the same value, so a check would never end (put the reference below `properties` or `items`)",
        ),
        (
            "{allOf: [{$ref: '#a'}], $defs: {a: {$anchor: a, anyOf: [{$ref: '#/$defs/a'}, {}]}}}",
            "2:8 invalid_schema input: the schema refers to itself for the same value, so a check would never end (put the reference below `properties` or `items`)",
        ),
    ] {
        assert_eq!(refused(schema), [problem], "{schema}");
    }
    assert_eq!(refused("{type: strin, minimum: a, $ref: 'b', foo: 1}").len(), 4, "every problem at once");
}

#[test]
fn what_json_schema_has_is_accepted() {
    for text in [
        "{}",
        "{$schema: 'https://json-schema.org/draft/2020-12/schema', $id: 'https://example.com/order', title: Order, x-team: billing, examples: [1]}",
        "{properties: {a: {$ref: '#/$defs/a~1b'}, b: {$ref: '#/$defs/c%20d'}}, $defs: {a/b: {}, c d: true}}",
        "{if: {required: [a]}, then: {required: [b]}, else: false, dependentSchemas: {a: {}}, unevaluatedProperties: false}",
        "{type: array, prefixItems: [{const: 1}], items: false, contains: {}, minContains: 0, uniqueItems: true}",
        "{$dynamicAnchor: node, properties: {children: {items: {$dynamicRef: '#node'}}}}",
        "{patternProperties: {'^x-': {type: string, pattern: '^[a-z]+\\\\d$'}}, propertyNames: {maxLength: 10}}",
    ] {
        schema(text);
    }
    let list = schema("{properties: {next: {$ref: '#'}, value: {type: integer}}, required: [value]}");
    assert_eq!(problems(&list, r#"{"value": 1, "next": {"value": 2, "next": {"value": 3}}}"#), [""; 0]);
    assert_eq!(problems(&list, r#"{"value": 1, "next": {"next": 7}}"#), ["`/next` needs a field `value`"]);
    let dynamic = schema("{$dynamicAnchor: node, type: object, properties: {a: {$dynamicRef: '#node'}}}");
    assert_eq!(problems(&dynamic, r#"{"a": {"a": 1}}"#), ["`/a/a` must be an object, found a number"]);
    let pattern = schema("{pattern: '^[a-z]+\\\\d$'}".replace("\\\\", "\\").as_str());
    assert_eq!(problems(&pattern, r#""ab1""#), [""; 0]);
    assert_eq!(
        problems(&pattern, r#""ab""#),
        ["the body is `ab`, which does not match `^[a-z]+\\d$`".replace("\\\\", "\\")]
    );
}

#[test]
fn t37_the_size_of_a_schema_is_limited() {
    let many = |count: usize, one: &str| {
        let fields: Vec<String> = (0..count).map(|i| format!("f{i}: {one}")).collect();
        format!("{{properties: {{{}}}}}", fields.join(", "))
    };
    schema(&many(999, "{}"));
    assert_eq!(
        refused(&many(1_000, "{}")),
        ["2:8 limit_exceeded input: the `input` schema has 1,001 subschemas, the limit is 1,000"]
    );
    schema(&many(100, "{pattern: a}"));
    assert_eq!(
        refused(&many(101, "{pattern: a}")),
        ["2:8 limit_exceeded input: the `input` schema has 101 patterns, the limit is 100"]
    );
    let text = format!("{{description: {}}}", "x".repeat(64 * 1024));
    assert_eq!(refused(&text), ["2:8 limit_exceeded input: the `input` schema has 65,554 bytes, the limit is 65,536"]);
    let chain = |count: usize| {
        let parts: Vec<String> = (0..count).map(|i| format!("a{i}: {{$ref: '#/$defs/a{}'}}", i + 1)).collect();
        format!("{{$ref: '#/$defs/a0', $defs: {{{}, a{count}: {{}}}}}}", parts.join(", "))
    };
    schema(&chain(30));
    assert_eq!(
        refused(&chain(31)),
        ["2:8 limit_exceeded input: 33 subschemas apply on top of each other, the limit is 32"]
    );
}

/// Each level of the body doubles the work of a validator that follows every reference.
#[test]
fn t37_the_cost_of_a_check_is_bounded() {
    let twice = "{$ref: '#/$defs/n', $defs: {n: {allOf: [{properties: {x: {$ref: '#/$defs/n'}}}, {properties: {x: {$ref: '#/$defs/n'}}}], type: object}}}";
    let schema = schema(twice);
    let nested =
        |levels: usize, inner: &str| (0..levels).fold(inner.to_owned(), |body, _| format!("{{\"x\": {body}}}"));
    assert_eq!(problems(&schema, &nested(40, "{}")), [""; 0], "what fits is found out without the doubling");
    assert_eq!(problems(&schema, &nested(3, "1")).len(), 8);
    let mut budget = Budget::default();
    let found = schema.check(nested(40, "1").as_bytes(), &mut budget).unwrap_err();
    assert_eq!(found[0].message, "the body does not fit the `input` schema, in too many ways to list");
    // A batch shares one budget.
    let found = schema.check(nested(3, "1").as_bytes(), &mut budget).unwrap_err();
    assert_eq!(found.len(), 1);
    let spent = &mut Budget { checks: 3, lists: 3 };
    let found = schema.check(nested(3, "{}").as_bytes(), spent).unwrap_err();
    assert_eq!(found[0].message, "the body is too large to be checked against the `input` schema");
}

/// The deepest recursion that is allowed, with the keywords whose checks need the largest frames.
#[test]
fn t37_the_deepest_check_fits_a_small_stack() {
    for keyword in ["anyOf", "oneOf", "allOf"] {
        let parts: Vec<String> =
            (0..7).map(|i| format!("a{i}: {{{keyword}: [{{$ref: '#/$defs/a{}'}}]}}", i + 1)).collect();
        let last = "a7: {properties: {x: {$ref: '#/$defs/a0'}}, unevaluatedProperties: false}";
        let schema = schema(&format!("{{$ref: '#/$defs/a0', $defs: {{{}, {last}}}}}", parts.join(", ")));
        assert_eq!(schema.in_place, 16, "{keyword}");
        let body =
            |levels: usize| format!("{}1{}", "{\"x\": ".repeat(levels), "}".repeat(levels)).replace("1", "{\"y\": 1}");
        let deepest = LEVELS_MAX / 16 - 2;
        let check = move || {
            let found = schema.check(body(deepest).as_bytes(), &mut Budget::default()).unwrap_err();
            assert!(found[0].message.contains("fits none") || found[0].message.contains("must not have"), "{found:?}");
            let found = schema.check(body(deepest + 1).as_bytes(), &mut Budget::default()).unwrap_err();
            assert!(found[0].message.starts_with("the body is nested too deep"), "{found:?}");
        };
        std::thread::Builder::new().stack_size(1 << 20).spawn(check).unwrap().join().unwrap();
    }
}
