/* SPDX-License-Identifier: Apache-2.0 */
/* nics.c: call the controls of the fake libibverbs, and check a batch's explanation */
#include "nics.h"

#include <dlfcn.h>

static const char *missing_nics(void)
{
	return getenv("TEST_VERBS") && !getenv("TEST_RDMA") ? NULL :
							      "the fake libibverbs is not used";
}

const struct route needs_nics = {
	.name = "rdma",
	.listen = "127.0.0.1:0",
	.detail = "",
	.kind = WH_MEMORY_PAGEABLE,
	.devices = true,
	.missing = missing_nics,
};

static void *fake_symbol(const char *name)
{
	static void *library;
	void *found;

	if (!library)
		library = dlopen(getenv("TEST_VERBS"), RTLD_NOW | RTLD_NODELETE);
	found = library ? dlsym(library, name) : NULL;
	want_true(found, "the fake has no %s", name);
	return found;
}

/* FAKE(fail, (int, unsigned int), 12, 0) calls fake_verbs_fail(12, 0). */
#define FAKE(name, types, ...) (((void(*) types)fake_symbol("fake_verbs_" #name))(__VA_ARGS__))

void nics_hold(bool yes)
{
	FAKE(hold, (bool), yes);
}

void nic_hold(unsigned int nic, bool yes)
{
	FAKE(hold_nic, (unsigned int, bool), nic, yes);
}

void nics_fail(int status, unsigned int after)
{
	FAKE(fail, (int, unsigned int), status, after);
}

void nic_fail(unsigned int nic, int status, unsigned int after)
{
	FAKE(fail_nic, (unsigned int, int, unsigned int), nic, status, after);
}

void nics_lose(int status, unsigned int after)
{
	FAKE(lose, (int, unsigned int), status, after);
}

uint64_t nics_underruns(void)
{
	return ((uint64_t(*)(void))fake_symbol("fake_verbs_underruns"))();
}

unsigned int nics_receives(const struct ibv_qp *qp)
{
	return ((unsigned int (*)(const struct ibv_qp *))fake_symbol("fake_verbs_receives"))(qp);
}

void nics_refuse(int error, unsigned int after)
{
	FAKE(refuse, (int, unsigned int), error, after);
}

void nic_port(unsigned int nic, bool up)
{
	FAKE(port, (unsigned int, bool), nic, up);
}

void nic_remove(unsigned int nic)
{
	FAKE(remove, (unsigned int), nic);
}

void nic_speed(unsigned int nic, uint64_t speed)
{
	FAKE(speed, (unsigned int, uint64_t), nic, speed);
}

uint64_t nic_moved(unsigned int nic)
{
	return ((uint64_t(*)(unsigned int))fake_symbol("fake_verbs_moved"))(nic);
}

unsigned int nics_pairs(void)
{
	unsigned int open, most;

	FAKE(pairs, (unsigned int *, unsigned int *), &open, &most);
	return open;
}

int nics_open(void)
{
	return ((int (*)(void))fake_symbol("fake_verbs_open"))();
}

struct nics_counts nics_counts(void)
{
	uint64_t now[4];

	FAKE(counts, (uint64_t *), now);
	return (struct nics_counts){ now[0], now[1], now[2], now[3] };
}

struct nics_registered nics_registered(void)
{
	struct nics_registered now;

	FAKE(registrations, (uint64_t *, uint64_t *, uint64_t *), &now.all, &now.dma_bufs,
	     &now.relaxed);
	return now;
}

/* ---- explanations ------------------------------------------------------ */

const char *explained(struct wh_batch *batch)
{
	static char text[8192];

	want_true(wh_batch_explain(batch, text, sizeof(text)) >= 0, "%s", wh_error_text());
	return text;
}

uint64_t bytes_by(struct wh_batch *batch, const char *transport, char refused[192])
{
	struct wh_route routes[8];
	size_t count = 8;

	if (refused)
		*refused = 0;
	want(0, wh_batch_routes(batch, routes, &count));
	for (size_t i = 0; i < count; i++)
		if (!strcmp(routes[i].transport, transport)) {
			if (refused)
				memcpy(refused, routes[i].refused, 192);
			return routes[i].bytes;
		}
	return 0;
}

void want_by(struct wh_batch *batch, const char *transport, uint64_t bytes)
{
	uint64_t got = bytes_by(batch, transport, NULL);

	want_true(got == bytes, "%llu of %llu bytes by %s:\n%s", (unsigned long long)got,
		  (unsigned long long)bytes, transport, explained(batch));
}

void want_explained(struct wh_batch *batch, const char *word)
{
	const char *text = explained(batch);

	want_true(strstr(text, word), "\"%s\" is not in the explanation:\n%s", word, text);
}
