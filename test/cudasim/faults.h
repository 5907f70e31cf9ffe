/* faults.h: scripted failures and delays. The language is in README.md. */
#ifndef CUDASIM_FAULTS_H
#define CUDASIM_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

struct sim_host;

enum sim_op { OP_STATE, OP_TID, OP_LOCK, OP_CHECKPOINT, OP_RESTORE, OP_UNLOCK, OP_COUNT };

/* What the matching rules together ask for. */
struct fault_plan {
	uint64_t delay_ns;
	int32_t result;
	bool has_result;
	bool after; /* do the work, then return `result` all the same */
	bool crash;
	bool hang;
	bool stick;
	bool lose;
	bool kill_controller;
};

/* Who executes a rule, and so who counts it. */
enum fault_side { SIDE_TARGET, SIDE_CONTROLLER };

/* Remembers and checks CUDASIM_FAULTS of this process. */
void faults_init(void);

/* Rules of this process's environment that fit, added to *plan. */
void faults_from_env(struct fault_plan *plan, enum fault_side side, enum sim_op op, int pid, int alias);

/* Rules of ROOT/faults that fit, added to *plan; bad ones are reported if asked. */
void faults_from_file(struct fault_plan *plan, const struct sim_host *h, enum fault_side side,
		      enum sim_op op, int pid, int alias, bool report);

/* Differs when the file does: a hang ends then. */
uint64_t faults_version(const struct sim_host *h);

#endif
