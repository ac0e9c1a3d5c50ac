/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: windows-too waits hostile */
/* hostile-gpu.c: hostile clients of the unix socket that carries handles of GPU memory
 *
 * Requests that an owner has to survive. Answers that an initiator must not believe are in
 * hostile-gpu-answers.c. */
#include "lib/handles.h"

#define LENGTH (4 * MIB)

/* Send something: a long silence would end the session, and these tests take long. */
static void keep_alive(int control)
{
	want(0, raw_send_frame(control, WH_FRAME_PING, 0, "12345678", 8));
}

static void owner__asked_for_nonsense(void **state)
{
	static const uint32_t kinds[] = { WH_MEMORY_DEVICE, WH_MEMORY_VMM };
	static const struct child_options patient = { .config = { "timeout=60000" } };

	(void)state;
	for (unsigned int k = 0; k < 2; k++) {
		struct wh_exported exported;
		struct wh_hello welcome;
		struct gpu_pair p;
		uint64_t none;
		uint8_t garbage[64];
		int control, fd;

		gpu_pair_open_with(&p, WH_MEMORY_DEVICE, "cuda:0", kinds[k], "cuda:0", LENGTH,
				   child_start(&patient));
		child_region(p.child, p.memory, 0, 4096, "none", 0, &none);
		control = raw_control(p.child->url, &welcome);
		want(1, raw_count_regions(control));
		fd = handles_connect(&welcome);
		want(0, handles_ask(fd, p.remote.id, 0));
		want(0, handles_answer(fd, &exported));
		/* Regions that are unpublished or never existed, and segments out of range. */
		want(0, handles_ask(fd, none, 0));
		want(-ENOENT, handles_answer(fd, &exported));
		want(0, handles_ask(fd, p.remote.id + 1000, 0));
		want(-ENOENT, handles_answer(fd, &exported));
		want(0, handles_ask(fd, UINT64_MAX, UINT32_MAX));
		want(-ENOENT, handles_answer(fd, &exported));
		/* Memory that has no fabric handle is told by what it has. */
		want(0, handles_ask(fd, p.remote.id, WH_MAP_FABRIC));
		want(0, handles_answer(fd, &exported));
		for (uint32_t shift = 0; shift < 30; shift++) {
			keep_alive(control);
			want(0, handles_ask(fd, p.remote.id, UINT32_C(1) << shift));
			want(-ERANGE, handles_answer(fd, &exported));
		}
		for (uint32_t shift = 0; shift < 30; shift += 6) {
			keep_alive(control);
			want(0,
			     handles_ask(fd, p.remote.id, UINT32_C(1) << shift | WH_MAP_OBJECTS));
			want(-ERANGE, handles_answer(fd, &exported));
		}
		/* Objects of an unpublished region, and of a published one: the kernel driver
		 * decides whether they exist. */
		want(0, handles_ask(fd, none, WH_MAP_OBJECTS));
		want(-ENOENT, handles_answer(fd, &exported));
		keep_alive(control);
		want(0, handles_ask(fd, p.remote.id, WH_MAP_OBJECTS));
		want_true(handles_answer(fd, &exported) != -ERANGE,
			  "no object of its only segment");
		keep_alive(control);
		for (uint32_t less = 0; less < 40; less++) {
			keep_alive(control);
			want(0, handles_ask(fd, p.remote.id, UINT32_MAX - less));
			want(-ERANGE, handles_answer(fd, &exported));
		}
		gpu_pair_want_well(&p);
		keep_alive(control);
		/* Frames of other types than MAP, or of another length. */
		for (unsigned int i = 0; i < 6; i++) {
			static const uint16_t types[] = {
				WH_FRAME_MAP, WH_FRAME_MAP, WH_FRAME_EXPORTED, WH_FRAME_PING, 0,
				0xffff
			};
			int other = handles_connect(&welcome);

			keep_alive(control);
			pattern_fill(garbage, sizeof(garbage), 0, i);
			raw_send_frame(other, types[i], 0, garbage, i ? 40 : 8);
			want_true(raw_closes(other, (int)(PATIENCE / MS)), "it took frame %u", i);
			close(other);
		}
		gpu_pair_want_well(&p);
		keep_alive(control);
		/* A client that asks and does not read is dropped, and delays nobody. */
		fd = (close(fd), handles_connect(&welcome));
		for (unsigned int i = 0; i < 20000; i++)
			if (handles_ask(fd, p.remote.id, 0))
				break;
		gpu_pair_want_well(&p);
		close(fd);
		close(control);
		gpu_pair_want_well(&p);
		gpu_pair_close(&p);
	}
}

/* A session received the memory and does not confirm its release. It cannot block the owner for
 * ever, nor is the memory freed while mapped. */
static void owner__not_let_go(void **state)
{
	static const uint32_t kinds[] = { WH_MEMORY_DEVICE, WH_MEMORY_VMM };
	static const struct child_options hasty = { .config = { SCALE("timeout=1000",
								      "timeout=4000") } };

	(void)state;
	for (unsigned int k = 0; k < 2; k++) {
		struct wh_exported exported;
		struct wh_hello welcome;
		struct gpu_pair p;
		int control, fd, region;
		int64_t begun, quiet;
		uint64_t id;

		gpu_pair_open_with(&p, WH_MEMORY_DEVICE, "cuda:0", kinds[k], "cuda:0", LENGTH,
				   child_start(&hasty));
		region = child_region(p.child, p.memory, 0, LENGTH, "kept", ACCESS_BOTH, &id);
		control = raw_control(p.child->url, &welcome);
		want(2, raw_count_regions(control));
		fd = handles_connect(&welcome);
		want(0, handles_ask(fd, id, 0));
		want(0, handles_answer(fd, &exported));
		quiet = quiet_now();
		begun = now();
		want(-EBUSY, child_unregister(p.child, region));
		want_true(now() - begun > 500 * MS && quiet_now() - quiet < SCALE(5, 20) * SECOND,
			  "it took %lld ms", (long long)((now() - begun) / MS));
		want(0, handles_ask(fd, id, 0));
		want(-ENOENT, handles_answer(fd, &exported));
		close(fd);
		close(control);
		for (begun = now(); child_unregister(p.child, region) && now() - begun < PATIENCE;)
			sleep_ms(20);
		want(-EINVAL, child_unregister(p.child, region)); /* unregistered already */
		gpu_pair_want_well(&p);
		gpu_pair_close(&p);
	}
}

static int owner_answers(struct wh_engine *owner, uint64_t id, const char *name, int published)
{
	struct wh_hello hello = raw_hello(WH_ROLE_CONTROL), welcome;
	int control = raw_connect(wh_engine_url(owner)), fd, error;
	struct wh_exported exported;

	strcpy(hello.name, name);
	want(0, raw_greet(control, &hello, &welcome));
	want(published, raw_lookup(control, id));
	fd = handles_connect(&welcome);
	want(0, handles_ask(fd, id, 0));
	error = handles_answer(fd, &exported);
	close(fd);
	close(control);
	return error;
}

/* A handle cannot distinguish peers: a peer with fewer rights than another gets none. */
static void owner__rights_by_name(void **state)
{
	static const struct wh_grant grants[] = { { "alice", WH_ACCESS_READ | WH_ACCESS_WRITE, 0 },
						  { "bob", WH_ACCESS_READ, 0 },
						  { "dave", WH_ACCESS_WRITE, 0 } };
	struct wh_memory_options kind = { .size = sizeof(kind),
					  .kind = WH_MEMORY_DEVICE,
					  .location = "cuda:0" };
	struct wh_region_options named = {
		.size = sizeof(named), .name = "target", .grants = grants, .grant_count = 3
	};
	struct wh_engine *owner;
	struct wh_region *region;
	void *memory;
	uint64_t id;

	(void)state;
	want(0,
	     wh_engine_open(&(struct wh_engine_options){ .size = sizeof(struct wh_engine_options),
							 .listen = "127.0.0.1:0" },
			    &owner));
	want(0, wh_memory_alloc(owner, LENGTH, &kind, &memory));
	want(0, wh_region_register(owner, memory, LENGTH, &named, &region));
	id = wh_region_id(region);
	want(0, owner_answers(owner, id, "alice", 1));
	want(-EOPNOTSUPP, owner_answers(owner, id, "bob", 1));
	want(-EOPNOTSUPP, owner_answers(owner, id, "dave", 1));
	want(-ENOENT, owner_answers(owner, id, "carol", 0));
	for (int64_t begun = now(); wh_region_unregister(region) && now() - begun < PATIENCE;)
		sleep_ms(20);
	want(0, wh_memory_free(owner, memory));
	want(0, wh_engine_close(owner));
}

static const struct CMUnitTest tests[] = {
	TEST_NEEDS(owner__asked_for_nonsense, needs_fake),
	TEST_NEEDS(owner__not_let_go, needs_fake),
	TEST_NEEDS(owner__rights_by_name, needs_fake),
};

HARNESS_MAIN("hostile-gpu", tests)
