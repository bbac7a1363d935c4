# dwell: development by make. Each recipe is a line; the work is in scripts/.

.PHONY: help services services-stop services-purge venv build run demo test lint fmt

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name what; do printf '%-16s %s\n' "$$name" "$$what"; done

services: ## Start RabbitMQ and Redis, addresses in .dev/env (SERVICES=given|docker|local, BROKER=3.10|4.0|4.3)
	@scripts/services start
	@scripts/venv || true

services-stop: ## Stop what `make services` and tests started
	@scripts/services stop

services-purge: ## Stop it, and delete .dev with all data
	@scripts/services purge

venv: ## Make .dev/venv, a Python with pika
	@scripts/venv

build: ## Build the daemon
	@scripts/need cargo cc
	cargo build

run: services ## Run the daemon on these services, in the vhost dwell-dev (ARGS=...)
	@scripts/need cargo cc
	@scripts/run $(ARGS)

demo: services venv build ## Show delayed messages coming out when due
	@scripts/demo $(ARGS)

test: services venv ## Run all tests on these services (ARGS=... for cargo test)
	@scripts/test $(ARGS)

lint: ## Check format, clippy and dependencies
	@scripts/lint

fmt: ## Format the code
	@scripts/need cargo rustfmt
	cargo fmt
