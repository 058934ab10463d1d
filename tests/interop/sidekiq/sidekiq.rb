# frozen_string_literal: true

# What the tests let the real Sidekiq do. `ruby sidekiq.rb CODE..` runs code in here and prints its value as JSON;
# `ruby sidekiq.rb work QUEUE..` works queues, and says when it has begun.

require "json"
require "sidekiq"
require "sidekiq/api"

Sidekiq.logger.level = Logger::FATAL
Redis.silence_deprecations = true if Redis.respond_to?(:silence_deprecations=)
Redis.sadd_returns_boolean = false if Redis.respond_to?(:sadd_returns_boolean=)
$stdout.sync = true

# Notes in a list with what it was called, and by whom.
class Echo
  include Sidekiq::Worker

  def perform(*args)
    Sidekiq.redis { |redis| redis.rpush("ran", JSON.generate(["ruby", args, jid])) }
  end
end

# Only Ruby knows this one.
class RubyOnly < Echo
end

# What a test asks about entries.
module Ask
  module_function

  def queue(name = "default")
    Sidekiq.redis { |redis| redis.lrange("queue:#{name}", 0, -1) }
  end

  def set(name)
    Sidekiq.redis { |redis| redis.zrange(name, 0, -1) }
  end

  # Every entry anywhere is as Ruby would write it again.
  def stable?
    entries = queue + %w[schedule retry dead].flat_map { |name| set(name) }
    entries.reject { |entry| JSON.generate(JSON.parse(entry)) == entry }
  end
end

if ARGV[0] == "work"
  require "sidekiq/cli"
  require "sidekiq/launcher"
  options = Sidekiq.options.merge!(queues: ARGV[1..], concurrency: 5)
  Sidekiq.redis = { url: ENV.fetch("REDIS_URL"), size: 10 }
  Sidekiq::Launcher.new(options).run
  puts "ready"
  $stdin.read
  exit!
else
  puts JSON.generate([eval(ARGV.join("\n"))]) # rubocop:disable Security/Eval
end
