// The routes of the server, from its OpenAPI document: nothing is loaded from other hosts.

const make = (tag, className, ...children) => {
  const element = Object.assign(document.createElement(tag), { className });
  element.append(...children);
  return element;
};

function resolve(schema, spec) {
  const name = schema?.$ref?.split("/").pop();
  return name ? spec.components.schemas[name] : schema;
}

function typeOf(schema = {}) {
  if (schema.enum) return schema.enum.length > 12 ? "one of many" : schema.enum.join(" | ");
  if (schema.const !== undefined) return String(schema.const);
  if (schema.anyOf) return schema.anyOf.map(typeOf).filter((type) => type !== "null").join(" or ");
  if (schema.type === "array") return `list of ${typeOf(schema.items)}`;
  return schema.format === "binary" ? "file" : schema.type ?? "object";
}

// The fields of the query, the path and the body, in rows of [name, place, type, description].
function fieldsOf(route, spec) {
  const parameters = (route.parameters ?? []).map(({ name, in: place, schema, description }) =>
    [name, place, typeOf(schema), description ?? schema?.description ?? ""]);
  const bodies = Object.entries(route.requestBody?.content ?? {}).flatMap(([type, { schema }]) => {
    const place = type === "multipart/form-data" ? "form" : type;
    return Object.entries(resolve(schema, spec)?.properties ?? {}).map(([name, field]) =>
      [name, place, typeOf(resolve(field, spec)), field.description ?? ""]);
  });
  return [...parameters, ...bodies];
}

function tableOf(rows, heads) {
  const cells = (tag, texts) => texts.map((text, i) => make(tag, "", i || tag === "th" ? text : make("code", "", text)));
  const body = rows.map((row) => make("tr", "", ...cells("td", row)));
  return make("table", "", make("thead", "", make("tr", "", ...cells("th", heads))), make("tbody", "", ...body));
}

function routeElement(path, method, route, spec) {
  const summary = make("summary", "",
    make("span", "method", method.toUpperCase()), make("code", "", path), make("span", "about", route.summary ?? ""));
  const fields = fieldsOf(route, spec);
  const statuses = Object.entries(route.responses ?? {}).map(([status, { description }]) => [status, description ?? ""]);
  return make("details", "", summary,
    ...(fields.length ? [tableOf(fields, ["Field", "In", "Type", "Meaning"])] : []), tableOf(statuses, ["Status", "When"]));
}

async function show() {
  const spec = await (await fetch("/openapi.json")).json();
  const groups = new Map();
  for (const [path, methods] of Object.entries(spec.paths)) {
    for (const [method, route] of Object.entries(methods)) {
      const tag = route.tags?.[0] ?? "other";
      groups.set(tag, [...(groups.get(tag) ?? []), routeElement(path, method, route, spec)]);
    }
  }
  const sections = [...groups].map(([tag, routes]) => make("section", "", make("h2", "", tag), ...routes));
  document.getElementById("routes").replaceChildren(...sections);
}

show().catch((error) => { document.getElementById("routes").textContent = `The routes cannot be shown: ${error.message}`; });
