/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gds.h: bytes between a file and GPU memory by GPUDirect Storage: the disk and the GPU exchange
 * them, without the CPU or host memory. It takes whole pages; the rest goes through slots
 * (stage.c). It is tried if the setting `cufile` asks for it.
 */
#ifndef WH_TRANSPORT_CUDA_GDS_H
#define WH_TRANSPORT_CUDA_GDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct wh_device_mapping;
struct wh_device_mappings;
struct wh_file;
struct wh_file_gds;
struct wh_gds;

#define WH_GDS_PAGE 4096u /* file offsets, addresses and lengths are multiples of this */

/* The engine's part. NULL: the setting says no, or no memory. */
struct wh_gds *wh_gds_new(struct wh_device_mappings *mappings);
/* NULL is allowed. */
void wh_gds_free(struct wh_gds *gds);

/* For a file; opens nothing yet. NULL: not asked for, or no memory. */
struct wh_file_gds *wh_file_gds_new(struct wh_gds *gds, struct wh_file *file);
/* Nothing is moved any more. NULL is allowed. */
void wh_file_gds_close(struct wh_file_gds *gds);
/* Can it move the file's bytes? Opens the library and the file the first time, which may take long:
 * on threads that may wait. */
bool wh_file_gds_ready(struct wh_file_gds *gds);
/* Move whole pages, op WH_READ from the file, WH_WRITE into it: `offset` is in the file's range,
 * `address` in the memory of `mapping`. Waits. 0, or a negative errno with a text: the bytes of the
 * target are undefined, and slots may move them. An error of cuFile itself, not of the file system,
 * ends its use for the file. */
int wh_file_gds_move(struct wh_file_gds *gds, uint32_t op, uint64_t offset,
		     const struct wh_device_mapping *mapping, uint64_t address, uint64_t length);
/* The caller moves bytes in another way: why, for explanations. */
void wh_file_gds_skip(struct wh_file_gds *gds, const char *why);
/* For explanations, of the last use: true if it has moved bytes; else why not, or "" if it was not
 * tried. */
bool wh_file_gds_describe(struct wh_file_gds *gds, char *why, size_t size);

#endif
