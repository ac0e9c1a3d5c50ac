/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As much of libibverbs.so.1 as asks what a NIC can do. FAKE_VERBS names the NICs, "a,b"; without
 * it there is none. FAKE_VERBS_DMABUF is the errno of a registration with fd -1 (by default EBADF:
 * the NIC can), FAKE_VERBS_REGISTER that of one with a file descriptor (0: it succeeds). What is
 * left open when the list is asked for anew, or the process ends, aborts.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define NICS 8

static struct nic {
	char name[64];
} nics[NICS];

static struct nic *list[NICS + 1];
static int open_count; /* contexts, domains and registrations */

static void check_closed(void)
{
	if (open_count) {
		fprintf(stderr, "fake libibverbs: %d objects are left open\n", open_count);
		abort();
	}
}

static int setting(const char *name, int fallback)
{
	const char *text = getenv(name);

	return text ? (int)strtol(text, NULL, 10) : fallback;
}

EXPORT struct nic **ibv_get_device_list(int *count)
{
	const char *names = getenv("FAKE_VERBS");
	int found = 0;

	check_closed();
	atexit(check_closed);
	while (names && *names && found < NICS) {
		size_t length = strcspn(names, ",");

		snprintf(nics[found].name, sizeof(nics[found].name), "%.*s", (int)length, names);
		list[found] = &nics[found];
		found++;
		names += length + (names[length] == ',');
	}
	list[found] = NULL;
	*count = found;
	return list;
}

EXPORT void ibv_free_device_list(struct nic **devices)
{
	if (devices != list)
		abort();
}

EXPORT const char *ibv_get_device_name(struct nic *nic)
{
	return nic->name;
}

EXPORT void *ibv_open_device(struct nic *nic)
{
	open_count++;
	return nic;
}

EXPORT int ibv_close_device(void *context)
{
	open_count--;
	return !context;
}

EXPORT void *ibv_alloc_pd(void *context)
{
	open_count++;
	return context;
}

EXPORT int ibv_dealloc_pd(void *pd)
{
	open_count--;
	return !pd;
}

EXPORT void *ibv_reg_dmabuf_mr(void *pd, uint64_t offset, size_t length, uint64_t iova, int fd,
			       int access)
{
	(void)offset;
	(void)iova;
	(void)access;
	if (fd < 0)
		errno = setting("FAKE_VERBS_DMABUF", EBADF);
	else if (fcntl(fd, F_GETFD) < 0 || !length)
		errno = EINVAL;
	else
		errno = setting("FAKE_VERBS_REGISTER", 0);
	if (errno)
		return NULL;
	open_count++;
	return pd;
}

EXPORT int ibv_dereg_mr(void *mr)
{
	open_count--;
	return !mr;
}

/* State, most MTU (4096), active MTU (1024): the beginning of the struct. */
EXPORT int ibv_query_port(void *context, uint8_t port, uint32_t *attributes)
{
	if (!context || port != 1)
		return EINVAL;
	attributes[0] = 4;
	attributes[1] = 5;
	attributes[2] = 3;
	return 0;
}
