/* SPDX-License-Identifier: Apache-2.0 */
/* Loading libibverbs, and calls that differ between its versions. */
#include "platform/verbs.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/error.h"

#define AT(field) offsetof(struct wh_verbs, field)

static const struct function {
	const char *name;
	size_t at;
	bool optional;
} functions[] = {
	{ "ibv_get_device_list", AT(get_device_list), false },
	{ "ibv_free_device_list", AT(free_device_list), false },
	{ "ibv_get_device_name", AT(get_device_name), false },
	{ "ibv_open_device", AT(open_device), false },
	{ "ibv_close_device", AT(close_device), false },
	{ "ibv_query_device", AT(query_device), false },
	{ "ibv_query_port", AT(query_port), false },
	{ "ibv_query_gid", AT(query_gid), false },
	{ "ibv_query_pkey", AT(query_pkey), false },
	{ "ibv_get_async_event", AT(get_async_event), false },
	{ "ibv_ack_async_event", AT(ack_async_event), false },
	{ "ibv_alloc_pd", AT(alloc_pd), false },
	{ "ibv_dealloc_pd", AT(dealloc_pd), false },
	{ "ibv_reg_mr", AT(reg_mr), false },
	{ "ibv_reg_mr_iova2", AT(reg_mr_iova2), true },
	{ "ibv_reg_dmabuf_mr", AT(reg_dmabuf_mr), true },
	{ "ibv_dereg_mr", AT(dereg_mr), false },
	{ "ibv_create_comp_channel", AT(create_comp_channel), false },
	{ "ibv_destroy_comp_channel", AT(destroy_comp_channel), false },
	{ "ibv_create_cq", AT(create_cq), false },
	{ "ibv_destroy_cq", AT(destroy_cq), false },
	{ "ibv_get_cq_event", AT(get_cq_event), false },
	{ "ibv_ack_cq_events", AT(ack_cq_events), false },
	{ "ibv_create_qp", AT(create_qp), false },
	{ "ibv_modify_qp", AT(modify_qp), false },
	{ "ibv_destroy_qp", AT(destroy_qp), false },
	{ "_ibv_query_gid_ex", AT(query_gid_ex), true },
};

int wh_verbs_open(const char *path, struct wh_verbs **out)
{
	const char *library = path && *path ? path : WH_VERBS_LIBRARY;
	struct wh_verbs *verbs = calloc(1, sizeof(*verbs));

	if (!verbs)
		return wh_fail(ENOMEM, "no memory for what is known of libibverbs");
	verbs->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	if (!verbs->library) {
		const char *why = dlerror();

		free(verbs);
		return wh_fail(ENODEV, "no libibverbs: %.120s; install rdma-core (libibverbs1)",
			       why ? why : "dlopen failed");
	}
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		void *found = dlsym(verbs->library, functions[i].name);

		if (!found && !functions[i].optional) {
			wh_verbs_close(verbs);
			return wh_fail(ENODEV,
				       "%s has no %s(): it is no libibverbs that can be used",
				       library, functions[i].name);
		}
		memcpy((char *)verbs + functions[i].at, &found, sizeof(found));
	}
	*out = verbs;
	return 0;
}

void wh_verbs_close(struct wh_verbs *verbs)
{
	if (!verbs)
		return;
	dlclose(verbs->library);
	free(verbs);
}

/* The kernel's word for the type of a GID, where the library is too old to tell. */
static uint32_t type_from_sysfs(const char *device, uint8_t port, unsigned index)
{
	char path[192], word[32] = "";
	FILE *file;

	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/%u/gid_attrs/types/%u", device,
		 port, index);
	file = fopen(path, "re");
	if (!file)
		return IBV_GID_IB;
	if (!fgets(word, sizeof(word), file))
		word[0] = 0;
	fclose(file);
	return !strncmp(word, "RoCE v2", 7) ? IBV_GID_ROCE_V2 : IBV_GID_ROCE_V1;
}

int wh_verbs_gid(const struct wh_verbs *verbs, struct ibv_context *context, const char *device,
		 uint8_t port, unsigned index, struct ibv_gid_entry *out)
{
	static const union ibv_gid empty;
	struct ibv_gid_entry entry = { .gid_index = index, .port_num = port };

	if (verbs->query_gid_ex) {
		if (verbs->query_gid_ex(context, port, index, &entry, 0, sizeof(entry)))
			return -ENOENT;
	} else {
		if (verbs->query_gid(context, port, (int)index, &entry.gid))
			return -ENOENT;
		entry.gid_type = type_from_sysfs(device, port, index);
	}
	if (!memcmp(entry.gid.raw, empty.raw, sizeof(empty.raw)))
		return -ENOENT;
	*out = entry;
	return 0;
}

struct ibv_mr *wh_verbs_register(const struct wh_verbs *verbs, struct ibv_pd *pd, void *address,
				 size_t length, int access)
{
	if (access & IBV_ACCESS_RELAXED_ORDERING && verbs->reg_mr_iova2)
		return verbs->reg_mr_iova2(pd, address, length, (uintptr_t)address,
					   (unsigned int)access);
	return verbs->reg_mr(pd, address, length, access & ~IBV_ACCESS_RELAXED_ORDERING);
}

int wh_verbs_dma_buf(const struct wh_verbs *verbs, struct ibv_pd *pd)
{
	struct ibv_mr *mr;

	if (!verbs->reg_dmabuf_mr)
		return ENOSYS;
	/* No descriptor: a driver that has the call gets so far as to look at it. */
	errno = 0;
	mr = verbs->reg_dmabuf_mr(pd, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE);
	if (mr) {
		verbs->dereg_mr(mr);
		return EIO;
	}
	return errno == EBADF ? 0 : errno ? errno : EIO;
}

const char *wh_verbs_status(int status)
{
	static const char *const texts[] = {
		[0] = "success",
		[1] = "local length error",
		[2] = "local QP operation error",
		[4] = "local protection error",
		[5] = "flushed",
		[6] = "memory window bind error",
		[7] = "bad response",
		[8] = "local access error",
		[9] = "remote invalid request",
		[10] = "remote access error",
		[11] = "remote operation error",
		[12] = "no acknowledgement (retry counter exceeded)",
		[13] = "receiver not ready",
	};

	if (status < 0 || (size_t)status >= sizeof(texts) / sizeof(texts[0]) || !texts[status])
		return "an error of the NIC";
	return texts[status];
}
