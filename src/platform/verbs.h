/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libibverbs, opened at run time. No policy: the transport decides which ports it uses.
 *
 * The library's functions that return an int return 0 or a positive errno; those that return a
 * pointer set errno. Their manual pages are in section 3.
 */
#ifndef WH_PLATFORM_VERBS_H
#define WH_PLATFORM_VERBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "platform/verbs-abi.h"

#define WH_VERBS_LIBRARY "libibverbs.so.1"
#define WH_VERBS_NAME 64 /* of a device, with the NUL */

struct wh_verbs {
	void *library;
	struct ibv_device **(*get_device_list)(int *count);
	void (*free_device_list)(struct ibv_device **list);
	const char *(*get_device_name)(struct ibv_device *device);
	struct ibv_context *(*open_device)(struct ibv_device *device);
	int (*close_device)(struct ibv_context *context);
	int (*query_device)(struct ibv_context *context, struct ibv_device_attr *out);
	int (*query_port)(struct ibv_context *context, uint8_t port, struct ibv_port_attr *out);
	int (*query_gid)(struct ibv_context *context, uint8_t port, int index, union ibv_gid *out);
	int (*query_pkey)(struct ibv_context *context, uint8_t port, int index, uint16_t *out);
	int (*get_async_event)(struct ibv_context *context, struct ibv_async_event *out);
	void (*ack_async_event)(struct ibv_async_event *event);
	struct ibv_pd *(*alloc_pd)(struct ibv_context *context);
	int (*dealloc_pd)(struct ibv_pd *pd);
	struct ibv_mr *(*reg_mr)(struct ibv_pd *pd, void *address, size_t length, int access);
	/* NULL before rdma-core 27. Ignores optional access flags that the kernel does not know;
	 * reg_mr fails on them. */
	struct ibv_mr *(*reg_mr_iova2)(struct ibv_pd *pd, void *address, size_t length,
				       uint64_t iova, unsigned int access);
	/* NULL before rdma-core 34. `iova`: the address of the first byte under the keys; its
	 * offset within a page equals that of `offset`. */
	struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *pd, uint64_t offset, size_t length,
					uint64_t iova, int fd, int access);
	int (*dereg_mr)(struct ibv_mr *mr);
	struct ibv_comp_channel *(*create_comp_channel)(struct ibv_context *context);
	int (*destroy_comp_channel)(struct ibv_comp_channel *channel);
	struct ibv_cq *(*create_cq)(struct ibv_context *context, int entries, void *cq_context,
				    struct ibv_comp_channel *channel, int vector);
	int (*destroy_cq)(struct ibv_cq *cq);
	int (*get_cq_event)(struct ibv_comp_channel *channel, struct ibv_cq **cq,
			    void **cq_context);
	void (*ack_cq_events)(struct ibv_cq *cq, unsigned int count);
	struct ibv_qp *(*create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *attributes);
	int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask);
	int (*destroy_qp)(struct ibv_qp *qp);
	/* NULL before rdma-core 32: the types of GIDs are then read from sysfs. */
	int (*query_gid_ex)(struct ibv_context *context, uint32_t port, uint32_t index,
			    struct ibv_gid_entry *out, uint32_t flags, size_t size);
};

/* Load the library (path "" or NULL: WH_VERBS_LIBRARY). 0, or -ENODEV (no library, or it lacks a
 * function), -ENOMEM. */
int wh_verbs_open(const char *path, struct wh_verbs **out);
void wh_verbs_close(struct wh_verbs *verbs);

/* Entry `index` of a port's GID table. 0, or -ENOENT: the entry is empty or does not exist. */
int wh_verbs_gid(const struct wh_verbs *verbs, struct ibv_context *context, const char *device,
		 uint8_t port, unsigned index, struct ibv_gid_entry *out);

/* Register host memory, or GPU memory that nvidia-peermem translates. IBV_ACCESS_RELAXED_ORDERING
 * takes effect if the library and the kernel know it. NULL: see errno. */
struct ibv_mr *wh_verbs_register(const struct wh_verbs *verbs, struct ibv_pd *pd, void *address,
				 size_t length, int access);

/* Can the device register dma-bufs? 0: yes; else a positive errno. */
int wh_verbs_dma_buf(const struct wh_verbs *verbs, struct ibv_pd *pd);

/* A completion's status in words: "retry counter exceeded". */
const char *wh_verbs_status(int status);

/* ---- inline calls of the ABI ----------------------------------------------------------------- */

static inline int wh_verbs_poll(struct ibv_cq *cq, int count, struct ibv_wc *out)
{
	return cq->context->ops.poll_cq(cq, count, out);
}

static inline int wh_verbs_arm(struct ibv_cq *cq)
{
	return cq->context->ops.req_notify_cq(cq, 0);
}

static inline int wh_verbs_post(struct ibv_qp *qp, struct ibv_send_wr *first,
				struct ibv_send_wr **bad)
{
	return qp->context->ops.post_send(qp, first, bad);
}

static inline int wh_verbs_receive(struct ibv_qp *qp, struct ibv_recv_wr *first,
				   struct ibv_recv_wr **bad)
{
	return qp->context->ops.post_recv(qp, first, bad);
}

#endif
