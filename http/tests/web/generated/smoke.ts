// Uses the generated client as a program would: the compiler checks its types, the run checks the server.
import assert from "node:assert/strict";
import createClient from "openapi-fetch";
import type { components, paths } from "./duly.js";

type Job = components["schemas"]["Job"];
type State = components["schemas"]["JobState"];

const api = createClient<paths>({
  baseUrl: process.env.DULY_URL,
  headers: { Authorization: `Bearer ${process.env.DULY_TOKEN}` },
});

const pushed = await api.POST("/api/v1/jobs", {
  body: { kind: "mail", args: { to: "ada@example.com" }, priority: "high", after_ms: 3_600_000, tags: ["smoke"] },
});
assert.equal(pushed.response.status, 201);
assert(pushed.data);
assert.equal(pushed.data.pushed, "new");
const id = pushed.data.id;

const listed = await api.GET("/api/v1/jobs", { params: { query: { filter: "tag:smoke", limit: 10 } } });
assert(listed.data);
assert.deepEqual(
  listed.data.jobs.map((job: Job) => job.id),
  [id],
);

const stateOf = async (): Promise<State | undefined> =>
  (await api.GET("/api/v1/jobs/{id}", { params: { path: { id } } })).data?.state;
assert.equal(await stateOf(), "scheduled");

const cancelled = await api.POST("/api/v1/jobs/{id}/cancel", { params: { path: { id } } });
assert.equal(cancelled.data?.state, "cancelled");
assert.equal(await stateOf(), "cancelled");

// @ts-expect-error The priority is not one of the words.
const refused = await api.POST("/api/v1/jobs", { body: { kind: "mail", priority: "urgent" } });
assert.equal(refused.response.status, 422);
assert.equal(refused.error?.code, "invalid");
assert.equal(refused.error?.errors?.[0]?.pointer, "/priority");

const missing = await api.GET("/api/v1/jobs/{id}", { params: { path: { id: crypto.randomUUID() } } });
assert.equal(missing.error?.code, "not_found");
assert.equal(missing.error?.status, missing.response.status);

const { data: queues } = await api.GET("/api/v1/queues");
assert.equal(queues?.queues[0]?.queue, "default");
