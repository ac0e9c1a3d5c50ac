/* SPDX-License-Identifier: Apache-2.0 */
/* cufile.h: NVIDIA's libcufile (GPUDirect Storage), opened at run time. Layouts and numbers are
 * those of its interface from 1.4 to 1.16. */
#ifndef WH_PLATFORM_CUFILE_H
#define WH_PLATFORM_CUFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef void *cufile_handle;

struct cufile_status {
	int error; /* 0, or 5000 and more */
	int cuda; /* CUresult, of error 5011 */
};

#define CUFILE_TYPE_FD 1
struct cufile_descriptor {
	int type;
	union {
		int fd;
		void *handle;
	} handle;
	const void *operations;
};

#define CUFILE_CONTROL_ALLOW_COMPAT (1u << 1) /* of `control` */
#define CUFILE_FEATURE_P2P (1u << 4) /* of `features` */
struct cufile_properties {
	struct {
		unsigned major, minor; /* of nvidia-fs; 0.0: it is not loaded */
		size_t poll_threshold, max_direct;
		unsigned status, control;
	} nvfs;
	unsigned features;
	unsigned max_cache, buffer_cache, max_pinned, max_batch, batch_timeout;
};

#define CUFILE_PARAMETER_FORCE_COMPAT 2
#define CUFILE_PARAMETER_USE_P2PDMA 7

/* X(result, name, arguments): functions that every version has */
#define WH_CUFILE_FUNCTIONS(X)                                                                     \
	X(struct cufile_status, cuFileDriverOpen, (void))                                          \
	X(struct cufile_status, cuFileDriverClose, (void))                                         \
	X(struct cufile_status, cuFileDriverGetProperties, (struct cufile_properties *))           \
	X(struct cufile_status, cuFileHandleRegister,                                              \
	  (cufile_handle *, struct cufile_descriptor *))                                           \
	X(void, cuFileHandleDeregister, (cufile_handle))                                           \
	X(ssize_t, cuFileRead, (cufile_handle, void *, size_t, off_t, off_t))                      \
	X(ssize_t, cuFileWrite, (cufile_handle, const void *, size_t, off_t, off_t))

struct wh_cufile {
	void *library;
	bool opened; /* the driver: close it */
#define X(result, name, arguments) result(*name) arguments;
	WH_CUFILE_FUNCTIONS(X)
#undef X
	/* from 1.14 on; else NULL */
	struct cufile_status (*cuFileGetParameterBool)(int parameter, bool *out);
};

/* Open the library at `path` (NULL: libcufile.so.0) and its driver. -EOPNOTSUPP: it works, or may
 * work, in its compatibility mode, which is bounce buffers; or another negative errno; with a text.
 * May take long. */
int wh_cufile_open(struct wh_cufile *cufile, const char *path);
void wh_cufile_close(struct wh_cufile *cufile);
/* The errno and the text of a failed call: `error` is of a status, or what cuFileRead() and
 * cuFileWrite() return below -1, made positive. */
int wh_cufile_fail(const char *call, int error, const char *what);

#endif
